#include "millrace/http/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "millrace/base/files/files.h"

namespace millrace::http {
namespace {

Status CheckPrivate(const struct stat& info, const std::filesystem::path& file, std::uint64_t most_bytes) {
  if (!S_ISREG(info.st_mode))
    return Fail(Code::kInvalidArgument, "{} is not a file; name a regular file", file.string());
  if ((info.st_mode & S_IRWXO) != 0) {
    return Fail(Code::kPermissionDenied, "every user of this machine can read the keys in {}: run `chmod o= {}`",
                file.string(), file.string());
  }
  if ((info.st_mode & S_IWGRP) != 0) {
    return Fail(Code::kPermissionDenied, "others than its owner can change the keys in {}: run `chmod g-w {}`",
                file.string(), file.string());
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return Fail(Code::kPermissionDenied,
                "{} belongs to another user, who can change the keys in it; copy it, or change its owner with `chown`",
                file.string());
  }
  if (static_cast<std::uint64_t>(info.st_size) > most_bytes) {
    return Fail(Code::kInvalidArgument, "{} is larger than {} bytes: not a file of keys; name another", file.string(),
                most_bytes);
  }
  return {};
}

}  // namespace

Result<std::string> ReadPrivateFile(const std::filesystem::path& file, std::uint64_t most_bytes) {
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!fd || fstat(fd.get(), &info) != 0) return Fail(ErrnoError(errno, fmt::format("the key file {}", file.string())));
  MR_TRY(CheckPrivate(info, file, most_bytes));
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t end = 0;
  while (end < text.size()) {
    const ssize_t got = read(fd.get(), text.data() + end, text.size() - end);
    if (got < 0) return Fail(ErrnoError(errno, fmt::format("the key file {}", file.string())));
    if (got == 0) break;
    end += static_cast<std::size_t>(got);
  }
  text.resize(end);
  return text;
}

}  // namespace millrace::http
