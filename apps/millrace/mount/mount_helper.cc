#include "apps/millrace/mount/mount_helper.h"

#include <algorithm>
#include <array>

#include "millrace/base/text.h"

namespace millrace::mount {
namespace {

/// Options of mount(8), systemd-fstab-generator(8) and the kernel, which are not passed on.
constexpr std::array<std::string_view, 26> kGenericOptions = {
    "defaults", "rw",      "auto",    "noauto",   "user",       "nouser",   "users",      "owner",      "group",
    "nofail",   "_netdev", "exec",    "noexec",   "suid",       "nosuid",   "dev",        "nodev",      "sync",
    "async",    "atime",   "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime"};

/// Splits `a,b="x,y",c` at the commas outside of quotes.
std::vector<std::string> SplitOptions(std::string_view text) {
  std::vector<std::string> options(1);
  bool quoted = false;
  for (char c : text) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      options.emplace_back();
    } else {
      options.back() += c;
    }
  }
  std::erase_if(options, [](const std::string& option) { return option.empty(); });
  return options;
}

std::string ToFlag(const std::string& option) {
  if (option == "ro") return "--read-only";
  std::string flag = "--" + option;
  const std::size_t end = std::min(flag.find('='), flag.size());
  std::replace(flag.begin(), flag.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return flag;
}

bool IsMillraceOption(const std::string& option) {
  const std::string_view name = std::string_view(option).substr(0, option.find('='));
  return !name.starts_with("x-") && !name.starts_with("X-") && name != "comment" &&
         std::find(kGenericOptions.begin(), kGenericOptions.end(), name) == kGenericOptions.end();
}

}  // namespace

bool IsMountHelper(std::string_view program) {
  return program.substr(program.find_last_of('/') + 1) == "mount.millrace";
}

Result<std::vector<std::string>> TranslateMountHelper(const std::vector<std::string>& arguments) {
  std::vector<std::string> positional, flags;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-o" || word == "-t" || word == "-N") {
      if (++i == arguments.size()) return Fail(Code::kInvalidArgument, "mount.millrace: {} needs a value", word);
      if (word != "-o") continue;  // -t: the type is known; -N: mount(8) has entered the namespace
      for (const std::string& option : SplitOptions(arguments[i]))
        if (IsMillraceOption(option)) flags.push_back(ToFlag(option));
    } else if (word == "-f") {
      flags.emplace_back("--dry-run");
    } else if (word.size() > 1 && word.front() == '-') {
      if (word.find_first_not_of("snv", 1) != std::string::npos) {
        return Fail(Code::kInvalidArgument, "mount.millrace: unknown flag {}", word);
      }
    } else {
      positional.push_back(word);
    }
  }
  if (positional.size() != 2) {
    return Fail(
        Code::kInvalidArgument,
        "mount.millrace is called by mount(8): mount -t millrace s3://bucket/prefix /mnt/bucket -o ro,allow_other");
  }
  std::vector<std::string> translated = {"mount", positional[0], positional[1]};
  translated.insert(translated.end(), flags.begin(), flags.end());
  return translated;
}

}  // namespace millrace::mount
