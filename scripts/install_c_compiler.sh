#!/bin/sh
# Check that there is a C compiler for the tests of power failures; install Debian's packages if there is none.
command -v cc > /dev/null && exit 0
command -v gcc > /dev/null && exit 0
packages='gcc libc6-dev'
echo "There is no C compiler on PATH: installing the packages $packages with apt-get."
if command -v apt-get > /dev/null && { apt-get install --yes --quiet $packages > /dev/null ||
    { apt-get update --quiet > /dev/null && apt-get install --yes --quiet $packages > /dev/null; }; }; then
    exit 0
fi
cat >&2 <<'TEXT'

The tests of power failures need a C compiler, and it could not be installed (the reason is above), so they are skipped. To install it:
  Debian, Ubuntu   apt-get update && apt-get install gcc libc6-dev   (as root)
  Fedora           dnf install gcc glibc-devel                       (as root)
Either cc or gcc has to be on PATH.
TEXT
exit 1
