#!/usr/bin/env bash
# The first process of a node: init.sh FOLDER NAME. What the node keeps is in FOLDER; its /run is in memory.
set -euo pipefail
home=$1 name=$2

echo "$name" >/proc/sys/kernel/hostname
mkdir -p "$home/lib" "$home/log"
mount --no-mtab -t tmpfs tmpfs /run  # else mount makes /run/mount first, and that is the machine's /run yet
mount --no-mtab --bind "$home/lib" /var/lib
mount --no-mtab --bind "$home/log" /var/log
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
touch "$home/booted"

trap 'exit 0' TERM
while true; do  # and bash reaps what processes of the node leave behind
    sleep 3600 &
    wait $! || true
done
