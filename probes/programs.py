"""Programs that commonly hold memory of graphics cards, by the name that the kernel keeps (15 letters)."""

from __future__ import annotations

_DESKTOP = frozenset(
    "Xorg Xwayland X gnome-shell kwin_wayland kwin_x11 plasmashell mutter weston sway hyprland Hyprland xfwm4 "
    "cinnamon cosmic-comp cosmic-panel gdm-x-session gnome-remote-de sddm sddm-greeter lightdm mate-panel "
    "xfce4-panel xfdesktop nautilus dolphin plasma-discover gnome-software gnome-terminal- konsole kitty alacritty "
    "ghostty wezterm-gui foot xdg-desktop-por firefox chrome chromium brave msedge "
    "electron code slack discord Discord steam steamwebhelper spotify thunderbird obs Kodi kodi.bin WindowServer "
    "dwm.exe explorer.exe msedge.exe chrome.exe firefox.exe".split()
)
_SERVERS = frozenset(
    "llama-server llama-cli ollama ollama_llama_se koboldcpp lms LM text-generation vllm python python3 python3.10 "
    "python3.11 python3.12 python3.13 jellyfin jellyfin-ffmpeg ffmpeg plex Plex emby frigate immich comfyui "
    "blender".split()
)


def is_desktop(name: str) -> bool:
    """Whether it draws a person's screen: the display server, the shell, browsers and the like."""
    return name in _DESKTOP or name.split(" ")[0] in ("Isolated", "Web")


def is_well_known(name: str) -> bool:
    """Whether the name says nothing of a person."""
    return is_desktop(name) or name in _SERVERS
