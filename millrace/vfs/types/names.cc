#include "millrace/vfs/types/names.h"

#include "millrace/base/text.h"

namespace millrace::vfs {

bool IsShowable(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name != kHiddenName && name.size() <= kMaxNameBytes &&
         name.find('\0') == std::string_view::npos && name.find('/') == std::string_view::npos;
}

Status CheckNewName(std::string_view directory_key, std::string_view name) {
  if (name.size() > kMaxNameBytes) {
    return Fail(Code::kNameTooLong, "names have at most {} bytes, this one {}", kMaxNameBytes, name.size());
  }
  // One byte is left for the '/' of a directory's marker.
  if (directory_key.size() + name.size() + 1 > kMaxKeyBytes) {
    return Fail(Code::kNameTooLong, "keys have at most {} bytes; {}{} is longer", kMaxKeyBytes, directory_key, name);
  }
  if (!IsShowable(name)) return Fail(Code::kInvalidArgument, "\"{}\" cannot name a file; choose another name", name);
  if (!IsValidUtf8(name)) {
    return Fail(Code::kInvalidArgument, "keys are UTF-8; a name in {} is not; give one in UTF-8",
                directory_key.empty() ? "/" : directory_key);
  }
  return {};
}

std::string_view DirectoryOf(std::string_view key) {
  auto slash = key.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : key.substr(0, slash + 1);
}

}  // namespace millrace::vfs
