#include "millrace/mount/fuse/handlers.h"

#include "millrace/base/clock.h"
#include "millrace/mount/fuse/request.h"
#include "millrace/mount/point/mount_stats.h"

namespace millrace::mount {
namespace {

// clang-format off
constexpr fuse_lowlevel_ops kHandlers = {
    .lookup = &HandleLookup, .forget = &HandleForget, .getattr = &HandleGetAttributes,
    .setattr = &HandleSetAttributes, .readlink = &HandleReadLink, .mknod = &HandleMakeNode,
    .mkdir = &HandleMakeDirectory, .unlink = &HandleUnlink, .rmdir = &HandleRemoveDirectory,
    .symlink = &HandleSymlink, .rename = &HandleRename, .link = &HandleLink, .open = &HandleOpen, .read = &HandleRead,
    .write = &HandleWrite, .flush = &HandleFlush, .release = &HandleRelease, .fsync = &HandleSync,
    .opendir = &HandleOpenDirectory, .readdir = &HandleReadDirectory, .releasedir = &HandleReleaseDirectory,
    .fsyncdir = &HandleSyncDirectory, .statfs = &HandleStatFs, .setxattr = &HandleSetXattr,
    .getxattr = &HandleGetXattr, .listxattr = &HandleListXattrs, .removexattr = &HandleRemoveXattr,
    .create = &HandleCreate, .ioctl = &HandleIoctl, .forget_multi = &HandleForgetMany, .fallocate = &HandleAllocate,
    .readdirplus = &HandleReadDirectoryPlus};
// clang-format on

/// Runs a handler and counts how long it took; every handler has replied when it returns.
template <auto member, MountOperation operation>
struct Counted;

template <class... Arguments, void (*fuse_lowlevel_ops::*member)(fuse_req_t, Arguments...), MountOperation operation>
struct Counted<member, operation> {
  static void Run(fuse_req_t request, Arguments... arguments) {
    MountStats& stats = *RequestContext::Of(request).options.stats;  // before the reply, which destroys the request
    const TimePoint began = SystemClock().Now();
    (kHandlers.*member)(request, arguments...);
    stats.Count(operation, SystemClock().Now() - began);
  }
};

}  // namespace

fuse_lowlevel_ops CountedHandlers() {
  fuse_lowlevel_ops counted = kHandlers;
  counted.lookup = &Counted<&fuse_lowlevel_ops::lookup, MountOperation::kLookup>::Run;
  counted.getattr = &Counted<&fuse_lowlevel_ops::getattr, MountOperation::kStat>::Run;
  counted.setattr = &Counted<&fuse_lowlevel_ops::setattr, MountOperation::kSetAttributes>::Run;
  counted.open = &Counted<&fuse_lowlevel_ops::open, MountOperation::kOpen>::Run;
  counted.create = &Counted<&fuse_lowlevel_ops::create, MountOperation::kCreate>::Run;
  counted.read = &Counted<&fuse_lowlevel_ops::read, MountOperation::kRead>::Run;
  counted.write = &Counted<&fuse_lowlevel_ops::write, MountOperation::kWrite>::Run;
  counted.flush = &Counted<&fuse_lowlevel_ops::flush, MountOperation::kFlush>::Run;
  counted.fsync = &Counted<&fuse_lowlevel_ops::fsync, MountOperation::kSync>::Run;
  counted.release = &Counted<&fuse_lowlevel_ops::release, MountOperation::kRelease>::Run;
  counted.readdir = &Counted<&fuse_lowlevel_ops::readdir, MountOperation::kReadDirectory>::Run;
  counted.readdirplus = &Counted<&fuse_lowlevel_ops::readdirplus, MountOperation::kReadDirectory>::Run;
  counted.getxattr = &Counted<&fuse_lowlevel_ops::getxattr, MountOperation::kGetXattr>::Run;
  counted.mkdir = &Counted<&fuse_lowlevel_ops::mkdir, MountOperation::kMakeDirectory>::Run;
  counted.unlink = &Counted<&fuse_lowlevel_ops::unlink, MountOperation::kUnlink>::Run;
  counted.rmdir = &Counted<&fuse_lowlevel_ops::rmdir, MountOperation::kRemoveDirectory>::Run;
  counted.rename = &Counted<&fuse_lowlevel_ops::rename, MountOperation::kRename>::Run;
  return counted;
}

}  // namespace millrace::mount
