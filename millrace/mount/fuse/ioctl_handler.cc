#include "millrace/mount/fuse/handlers.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/mount/fuse/request.h"
#include "millrace/mount/point/control.h"
#include "millrace/mount/point/mount_stats.h"
#include "millrace/object/local/mount_hints.h"
#include "millrace/object/local/mount_location.h"
#include "millrace/vfs/types/names.h"

namespace millrace::mount {
namespace {

void ReplyLocation(fuse_req_t request, fuse_ino_t directory) {
  RequestContext& context = RequestContext::Of(request);
  auto prefix = context.tree.PrefixOf(directory);
  if (!prefix) return ReplyError(request, "locate", directory, prefix.error());
  const std::string text = object::LocationText(context.options.store, *prefix);
  auto answer = std::make_unique<object::MountLocation>();
  if (text.size() > sizeof answer->text) return void(fuse_reply_err(request, EOVERFLOW));
  answer->magic = object::MountLocation::kMagic;
  answer->bytes = static_cast<std::uint32_t>(text.size());
  std::ranges::copy(text, answer->text);
  fuse_reply_ioctl(request, 0, answer.get(), sizeof *answer);
}

void ReplyWillOpen(fuse_req_t request, fuse_ino_t directory, ByteSpan argument) {
  auto names = ParseWillOpen(argument);
  if (!names) return ReplyError(request, "hint", directory, names.error());
  auto taken = RequestContext::Of(request).tree.WillOpen(directory, *std::move(names));
  if (!taken) return ReplyError(request, "hint", directory, taken.error());
  object::WillOpenRequest answer{.taken = static_cast<std::uint32_t>(*taken)};
  fuse_reply_ioctl(request, 0, &answer, sizeof answer);
}

}  // namespace

Result<std::vector<std::string>> ParseWillOpen(ByteSpan argument) {
  using object::WillOpenRequest;
  constexpr std::size_t kNamesAt = offsetof(WillOpenRequest, names);
  if (argument.size() != sizeof(WillOpenRequest)) {
    return Fail(Code::kInvalidArgument, "hints of {} bytes; expected {}", argument.size(), sizeof(WillOpenRequest));
  }
  const auto bytes = LoadLittle<std::uint32_t>(argument.data());
  if (bytes > argument.size() - kNamesAt) {
    return Fail(Code::kInvalidArgument, "hints with {} bytes of names; at most {} fit", bytes,
                argument.size() - kNamesAt);
  }
  std::string_view text = AsText(argument.subspan(kNamesAt, bytes));
  if (text.empty()) return std::vector<std::string>();
  if (text.back() != '\0') return Fail(Code::kInvalidArgument, "the last hint must end with a NUL");
  text.remove_suffix(1);
  std::vector<std::string> names;
  for (std::string_view name : Split(text, '\0')) {
    for (std::string_view component : Split(name, '/')) {
      if (!vfs::IsShowable(component)) {
        return Fail(Code::kInvalidArgument,
                    "\"{}\" is no relative path; expected names between slashes, without . and ..", name);
      }
    }
    names.emplace_back(name);
  }
  return names;
}

void HandleIoctl(fuse_req_t request, fuse_ino_t inode, unsigned command, void*, fuse_file_info*, unsigned,
                 const void* in, std::size_t in_size, std::size_t out_size) {
  RequestContext& context = RequestContext::Of(request);
  if (command == static_cast<unsigned>(object::kWillOpenRequest)) {
    return ReplyWillOpen(request, inode, {static_cast<const std::byte*>(in), in_size});
  }
  if (command == static_cast<unsigned>(object::kMountLocationRequest)) return ReplyLocation(request, inode);
  if (inode == vfs::kRootInode && command == static_cast<unsigned>(kDaemonStatsRequest)) {
    const std::string stats = DumpJson(context.options.stats->Snapshot());
    if (stats.size() > out_size) return void(fuse_reply_err(request, EOVERFLOW));
    return void(fuse_reply_ioctl(request, static_cast<int>(stats.size()), stats.data(), stats.size()));
  }
  if (inode != vfs::kRootInode || command != static_cast<unsigned>(kDaemonStatusRequest) ||
      out_size < sizeof(DaemonStatus)) {
    return void(fuse_reply_err(request, ENOTTY));
  }
  const vfs::PendingWrites pending = context.tree.pending();
  DaemonStatus status{.magic = kDaemonStatusMagic,
                      .pid = ::getpid(),
                      .files_being_written = pending.files,
                      .bytes_being_written = pending.bytes};
  fuse_reply_ioctl(request, 0, &status, sizeof status);
}

}  // namespace millrace::mount
