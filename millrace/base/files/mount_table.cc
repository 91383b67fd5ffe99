#include "millrace/base/files/mount_table.h"

#include <algorithm>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

bool IsOctal(char c) { return c >= '0' && c <= '7'; }

/// Decodes space, tab, newline and backslash, which the kernel writes as \ooo.
std::string UnescapeMountField(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && std::ranges::all_of(text.substr(i + 1, 3), IsOctal)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

std::vector<MountEntry> ParseMountTable(std::string_view text) {
  std::vector<MountEntry> mounts;
  for (std::string_view line : Split(text, '\n')) {
    // 36 35 0:45 / /mnt rw,nosuid master:1 - fuse.millrace s3://bucket rw,…  (optional fields before the dash)
    constexpr std::size_t kFixedFields = 6;  // proc_pid_mountinfo(5)
    const auto fields = Split(line, ' ');
    if (fields.size() < kFixedFields) continue;
    const auto dash = std::find(fields.begin() + kFixedFields, fields.end(), "-");
    if (fields.end() - dash < 3) continue;
    mounts.push_back({std::string(fields[2]), UnescapeMountField(fields[3]), UnescapeMountField(fields[4]),
                      std::string(dash[1]), UnescapeMountField(dash[2])});
  }
  return mounts;
}

Result<std::vector<MountEntry>> ReadMountTable() { return ParseMountTable(MR_TRY(ReadFile("/proc/self/mountinfo"))); }

Result<std::vector<MountEntry>> ReadMountTableOf(pid_t process) {
  return ParseMountTable(MR_TRY(ReadFile(fmt::format("/proc/{}/mountinfo", process))));
}

}  // namespace millrace
