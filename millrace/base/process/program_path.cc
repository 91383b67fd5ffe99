#include "millrace/base/process/program_path.h"

#include <cerrno>

namespace millrace {

Result<std::filesystem::path> ProgramPath() {
  std::error_code error;
  auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Fail(Code::kIo, "cannot read /proc/self/exe: {}", error.message());
  std::filesystem::path called = program_invocation_name;
  if (path.filename().native().starts_with("ld-linux-") && called.is_absolute()) return called;
  return path;
}

}  // namespace millrace
