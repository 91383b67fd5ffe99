# The reader has a build; the clone of this test has its programs only.
BUILD=$(dirname "$(dirname "$(command -v millrace)")")
cmake() {
  if [[ $1 == --install ]]; then shift 2; set -- --install "$BUILD" "$@"; fi
  command cmake "$@"
}
python3 "$SOURCE/tests/docs/printed_files.py" "$SOURCE/docs/guide/cpp.md" "$PWD"
