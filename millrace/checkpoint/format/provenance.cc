#include "millrace/checkpoint/format/provenance.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace millrace::checkpoint {

Provenance LocalProvenance(std::string program, std::string version) {
  Provenance by{.program = std::move(program), .version = std::move(version)};
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) by.host = name;
  passwd entry{}, *found = nullptr;
  std::array<char, 4096> texts{};
  if (getpwuid_r(geteuid(), &entry, texts.data(), texts.size(), &found) == 0 && found != nullptr)
    by.user = found->pw_name;
  return by;
}

}  // namespace millrace::checkpoint
