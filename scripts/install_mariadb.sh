#!/bin/sh
# Check that there is a MariaDB for the tests of copies from MySQL; install Debian's packages if there is none. No service is started.
command -v mariadbd > /dev/null && command -v mariadb > /dev/null && exit 0
packages='mariadb-server-core mariadb-client-core'
echo "There is no MariaDB on PATH: installing the packages $packages with apt-get."
if command -v apt-get > /dev/null && { apt-get install --yes --quiet $packages > /dev/null ||
    { apt-get update --quiet > /dev/null && apt-get install --yes --quiet $packages > /dev/null; }; }; then
    exit 0
fi
cat >&2 <<'TEXT'

The tests of copies from MySQL need MariaDB, and it could not be installed (the reason is above), so they are skipped. To install it:
  Debian, Ubuntu   apt-get update && apt-get install mariadb-server-core mariadb-client-core   (as root)
  Fedora           dnf install mariadb-server mariadb                                          (as root)
  macOS            brew install mariadb
Both mariadbd and mariadb have to be on PATH.
TEXT
exit 1
