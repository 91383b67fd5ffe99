#include "apps/millrace/objects/object_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "millrace/base/files/files.h"
#include "millrace/base/files/folder_watch.h"

namespace millrace::cli {
namespace {

/// A file that nobody has changed for so long is taken for whole, if no process has it open for writing.
constexpr Duration kSettled = std::chrono::seconds(2);
/// Changes come in bursts: a round begins when there was none for so long.
constexpr Duration kQuiet = std::chrono::milliseconds(300);
/// A watched folder is listed again after this time, whatever inotify says: mounts of other machines do not tell.
constexpr Duration kRelist = std::chrono::minutes(5);

bool IsOpenForWriting(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return false;
  // The kernel refuses a read lease on a file that has writers (fcntl(2)).
  if (::fcntl(file.get(), F_SETLEASE, F_RDLCK) == 0) {
    ::fcntl(file.get(), F_SETLEASE, F_UNLCK);
    return false;
  }
  return errno == EAGAIN;
}

/// Returns the watch on the source; nothing if it is a store or cannot be watched.
std::optional<FolderWatch> WatchSource(const Context& context, const CopyFlags& flags) {
  const auto url = object::ParseUrl(flags.sources().front());
  if (!url || url->scheme != object::Url::Scheme::kFile) return std::nullopt;
  auto watch = FolderWatch::Open(url->key);
  if (watch) return *std::move(watch);
  context.log().Warning("the source is looked at every --interval instead of being watched",
                        {{"reason", watch.error().ToString()}});
  return std::nullopt;
}

}  // namespace

bool UnsettledFiles::Has(const std::string& path) {
  struct stat state = {};
  if (::stat(path.c_str(), &state) != 0) return false;
  const auto changed = std::chrono::seconds(state.st_mtim.tv_sec) + std::chrono::nanoseconds(state.st_mtim.tv_nsec);
  const auto age = SystemClock().Wall().time_since_epoch() - changed;
  const bool is_young = age >= Duration::zero() && age < kSettled;  // a time in the future says nothing
  const bool unsettled = is_young || IsOpenForWriting(path);
  any_ = any_ || unsettled;
  return unsettled;
}

Result<int> WatchSync(const Context& context, const CopyFlags& flags,
                      const std::function<Result<int>(UnsettledFiles&)>& sync) {
  MR_TRY(RefuseDryRun(context, "sync --watch"));
  signal(SIGIO, SIG_IGN);  // says that a program wants to write a file while there is a lease on it
  for (bool is_first = true;; is_first = false) {
    // Before the round, so that it knows of changes during the round.
    std::optional<FolderWatch> watch = WatchSource(context, flags);
    UnsettledFiles unsettled;
    auto exit = sync(unsettled);
    if (!exit && is_first) return Fail(exit.error());
    if (!exit) exit = ReportError(context, exit.error());
    if (context.stop.stop_requested()) return *exit;
    const Duration again = *exit != kExitOk || !watch ? flags.interval : kRelist;
    const Duration at_most = unsettled.any() ? std::min(kSettled, again) : again;
    if (watch) {
      MR_TRY(watch->Wait(at_most, kQuiet, context.stop));
    } else {
      SystemClock().SleepFor(at_most, context.stop);
    }
    if (context.stop.stop_requested()) return kExitOk;
  }
}

}  // namespace millrace::cli
