#include "millrace/vfs/rename/rename_settler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/vfs/rename/rename_cleanup.h"
#include "millrace/vfs/rename/rename_recovery.h"

namespace millrace::vfs {
namespace {

/// Pauses between attempts; each is twice the one before. The longest is the period of the heartbeat, which goes on
/// meanwhile; a guess.
constexpr Duration kFirstPause = std::chrono::seconds(1), kLongestPause = kLeaseBeat;

}  // namespace

RenameSettler::RenameSettler(object::Store& store, const TreeOptions& options,
                             std::function<void(const RenameRecord&)> on_settled)
    : store_(store), options_(options), on_settled_(std::move(on_settled)) {}

RenameSettler::~RenameSettler() {
  std::jthread ending;
  MutexLock lock(mutex_);
  ending = std::move(thread_);
  lock.Unlock();
  ending = std::jthread();  // joins the thread before its data are destroyed
}

void RenameSettler::Add(std::unique_ptr<RenameLease> lease, PathLock::ExclusiveLock names_lock, const Error& reason) {
  const auto record = lease->record();
  names_lock.Refuse(fmt::format("the rename of {} to {} is not settled yet; it is settled when the store answers again",
                                record->from, record->to));
  options_.log.Error(
      record->committed
          ? "a renamed directory has its new name, but the old objects are not all gone; neither name can be changed "
            "until they are: see to it that the store answers"
          : "it is open whether a directory was renamed; neither name can be changed until it is undone: see to it "
            "that "
            "the store answers",
      {{"from", record->from}, {"to", record->to}, {"record", lease->key()}, {"reason", reason}});
  MutexLock lock(mutex_);
  renames_.push_back({.lease = std::move(lease),
                      .names_lock = std::move(names_lock),
                      .due = options_.clock->Now() + kFirstPause,
                      .pause = kFirstPause});
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  changed_.NotifyAll();
}

void RenameSettler::TryAll(const object::Call& call) { TryDue(TimePoint::max(), call); }

void RenameSettler::Run(const std::stop_token& stop) {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!changed_.Wait(mutex_, stop, [this]() MR_REQUIRES(mutex_) { return !renames_.empty(); })) return;
    }
    // Sleeps for the shortest pause only: a rename may be added that is due before the others.
    if (!options_.clock->SleepFor(kFirstPause, stop)) return;
    TryDue(options_.clock->Now(), {.stop = stop, .deadline = {}});
  }
}

void RenameSettler::TryDue(TimePoint now, const object::Call& call) {
  MutexLock trying(trying_);
  std::vector<OpenRename*> due;
  {
    MutexLock lock(mutex_);
    for (OpenRename& rename : renames_) {
      if (rename.due <= now) due.push_back(&rename);
    }
  }
  for (OpenRename* rename : due) {
    const bool over = IsOver(*rename, Try(*rename, call));
    std::list<OpenRename> ended;  // destroyed after `lock`, since that unlocks its names
    MutexLock lock(mutex_);
    if (over) {
      const auto at = std::ranges::find(renames_, rename, [](OpenRename& each) { return &each; });
      ended.splice(ended.end(), renames_, at);
    } else {
      rename->due = options_.clock->Now() + rename->pause;
      rename->pause = std::min(2 * rename->pause, kLongestPause);
    }
  }
}

Status RenameSettler::Try(OpenRename& rename, const object::Call& call) {
  RenameLease& lease = *rename.lease;
  if (!lease.lost().stop_requested()) {
    Status settled = SettleRename(store_, lease, call);
    if (settled || !lease.lost().stop_requested()) return settled;
  }
  // Another mount has the lease. The names are free when it has settled the rename, or is dead itself.
  const auto record = lease.record();
  RecoveredRenames counts;
  MR_TRY(RecoverRename(store_, RenameRootOf(options_, record->from), lease.key(), options_, counts, call));
  if (counts.left > 0) return Fail(Code::kBusy, "another mount is settling the rename; retry when it is done");
  return {};
}

bool RenameSettler::IsOver(OpenRename& rename, const Status& tried) {
  const auto record = rename.lease->record();
  const Code code = tried ? Code::kInternal : tried.error().code();
  if (!tried && (IsRetryable(code) || code == Code::kBusy || code == Code::kCancelled)) return false;
  on_settled_(*record);
  if (!tried) {
    options_.log.Error("a rename cannot be settled; its record stays for the next mount",
                       {{"from", record->from}, {"to", record->to}, {"reason", tried.error()}});
  } else {
    const bool by_other = rename.lease->lost().stop_requested();
    options_.log.Warning(by_other            ? "another mount has settled a directory's rename"
                         : record->committed ? "a directory's rename is finished"
                                             : "a directory's rename is undone",
                         {{"from", record->from}, {"to", record->to}});
  }
  return true;
}

}  // namespace millrace::vfs
