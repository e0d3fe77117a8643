#!/usr/bin/env bash
set -euo pipefail

# Copies the menu to the kitchen screen.
copy_menu() {
    rsync -a menu/ screen:/srv/menu/
}

function reload_screen {
    ssh screen systemctl reload menu
}

copy_menu
reload_screen
