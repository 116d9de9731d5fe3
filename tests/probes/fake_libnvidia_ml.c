/* A stand-in for NVIDIA's libnvidia-ml.so.1 with the structures of nvml.h: what pynvml itself reads.
   OLD_DRIVER leaves out what drivers before 510 lack. */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { uint64_t total, free, used; } memory_v1;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } memory_v2;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned pid; uint64_t used; unsigned gpu_instance, compute_instance; } process_info;

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "a sentence of the driver's"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "470.256.02", size); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)1; return SUCCESS; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { strncpy(text, "Tesla P40", size); return SUCCESS; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) { return NOT_SUPPORTED; }
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { *count = 0; return SUCCESS; }

int nvmlDeviceGetPciInfo_v3(void *handle, pci_info *info) {
  memset(info, 0, sizeof *info);
  strcpy(info->bus_id, "00000000:AF:00.0");
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
  memory->total = 25443893248u; memory->free = 24000000000u; memory->used = 1443893248u;
  return SUCCESS;
}

static int list(unsigned *count, process_info *found) {
  if (*count == 0) { *count = 2; return INSUFFICIENT_SIZE; }
  process_info here = {getpid(), 900000000u, 0xFFFFFFFFu, 0xFFFFFFFFu};
  process_info silent = {1, UINT64_MAX, 0xFFFFFFFFu, 0xFFFFFFFFu};
  found[0] = here; found[1] = silent; *count = 2;
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, process_info *found) { return list(count, found); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *count, process_info *found) { *count = 0; return SUCCESS; }

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
  memory->total = 25443893248u; memory->reserved = 400000000u; memory->free = 24000000000u; memory->used = 1043893248u;
  return memory->version == 0x02000028 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_info *found) { return list(count, found); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process_info *found) { *count = 0; return SUCCESS; }
#endif
