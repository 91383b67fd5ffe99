// Starts a program of the engine's bundle with the bundle's own dynamic linker and libraries, so that it needs none of
// the system. FOLDER/bin/NAME, which is a copy of this, runs FOLDER/lib/millrace/NAME. tools/release/bundle links it
// statically.
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

int main(int argc, char** argv) {
  static char self[PATH_MAX], linker[PATH_MAX + 64], libraries[PATH_MAX + 64], program[2 * PATH_MAX];
  static char* words[1 << 16];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  char* const name = length > 0 ? strrchr(self, '/') : nullptr;
  if (name == nullptr || name == self || argc > (1 << 16) - 8) {
    fprintf(stderr, "%s: cannot read /proc/self/exe, or too many arguments\n", argv[0]);
    return 127;
  }
  *name = '\0';
  char* const folder_end = strrchr(self, '/');
  const int folder = static_cast<int>(folder_end - self);
  snprintf(linker, sizeof linker, "%.*s/lib/" MILLRACE_LINKER, folder, self);
  snprintf(libraries, sizeof libraries, "%.*s/lib", folder, self);
  snprintf(program, sizeof program, "%.*s/lib/millrace/%s", folder, self, name + 1);
  *name = '/';
  int count = 0;
  static char name_follows[] = "--argv0", libraries_follow[] = "--library-path";
  for (char* word : {linker, name_follows, self, libraries_follow, libraries, program}) words[count++] = word;
  for (int i = 1; i < argc; ++i) words[count++] = argv[i];
  execv(linker, words);
  perror(linker);
  return 127;
}
