#!/bin/sh
# Check that there is a Chromium for `make test-web`; install Debian's package if there is none.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" > /dev/null && exit 0
done
echo 'There is no Chromium on PATH: installing the package chromium with apt-get.'
if command -v apt-get > /dev/null && { apt-get install --yes --quiet chromium > /dev/null ||
    { apt-get update --quiet > /dev/null && apt-get install --yes --quiet chromium > /dev/null; }; }; then
    exit 0
fi
cat >&2 <<'TEXT'

The tests in a browser need Chromium, and it could not be installed (the reason is above). Install it, then run
`make test-web` again:
  Debian, Ubuntu   apt-get update && apt-get install chromium   (as root)
  Fedora           dnf install chromium                         (as root)
  macOS            brew install --cask google-chrome, and a link named google-chrome on PATH
Or put any Chromium on PATH as chromium, chromium-browser or google-chrome.
TEXT
exit 1
