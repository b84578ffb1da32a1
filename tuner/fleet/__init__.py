"""Many hosts: the bundle that is installed on them, and Ansible over an inventory with its results by difference."""
