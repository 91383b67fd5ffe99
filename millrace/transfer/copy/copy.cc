#include "millrace/transfer/copy/copy.h"

#include <algorithm>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/local/local_file.h"
#include "millrace/transfer/local/partial_file.h"

namespace millrace::transfer {
namespace {

constexpr std::uint64_t kCopyPiece = 256 * kKiB;  // fits a core's cache between read and write

}  // namespace

Status CopyFile(const std::string& from, const std::string& to, const CopySettings& settings, object::Call call) {
  return CopyFile(MR_TRY(LocalFile::Open(from)), to, settings, std::move(call));
}

Status CopyFile(const LocalFile& file, const std::string& to, const CopySettings& settings, object::Call call) {
  PartialFile copy = MR_TRY(PartialFile::Open(to, {.size = file.size()}));
  Buffer piece(std::min(file.size(), kCopyPiece));
  for (std::uint64_t offset = 0; offset < file.size();) {
    MR_TRY(object::CheckCall(call, SystemClock()));
    MutableByteSpan part = piece.span().first(std::min<std::uint64_t>(piece.size(), file.size() - offset));
    MR_TRY(ReadExactly(file.fd(), part, offset, file.path()));
    MR_TRY(WriteFully(copy.fd(), part, offset, to));
    offset += part.size();
    if (settings.on_bytes) settings.on_bytes(part.size());
  }
  MR_TRY(file.CheckUnchanged());
  return copy.Publish(file.modified());
}

Result<std::string> LocalPath(const std::string& folder, const std::string& name) {
  for (std::string_view segment : Split(name, '/')) {
    if (segment.empty() || segment == "." || segment == ".." || segment.find('\0') != std::string_view::npos) {
      return Fail(Code::kInvalidArgument,
                  "key \"{}\" is refused: a segment \"{}\" is no file name, or leads out of the destination; copy the "
                  "object to a name of your own",
                  name, segment);
    }
  }
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace millrace::transfer
