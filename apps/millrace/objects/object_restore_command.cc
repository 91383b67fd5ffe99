// restore: makes archived objects readable for a while.
#include <algorithm>

#include "apps/common/flag_checks.h"
#include "apps/millrace/objects/object_commands.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"

namespace millrace::cli {
namespace {

constexpr int kMostDays = 36'500;
// Archives answer after minutes or hours.
constexpr Duration kFirstPoll = std::chrono::seconds(15), kLongestPoll = std::chrono::minutes(5);

struct RestoreFlags {
  std::vector<std::string> urls;
  SelectFlags select;
  object::RestoreOptions options;
  bool wait = false;
};

/// Returns whether the service has not made the copy yet: ongoing-request="true".
bool IsUnderWay(const object::ObjectInfo& info) {
  return info.attributes && info.attributes->restore.contains("\"true\"");
}

bool IsArchived(const object::ObjectInfo& info) {
  return info.attributes &&
         (info.attributes->storage_class == "GLACIER" || info.attributes->storage_class == "DEEP_ARCHIVE");
}

/// An object that the archive brings back.
struct RestoredObject {
  ObjectPlace place;
  std::string key;

  Result<object::ObjectInfo> Head(const object::Call& call) const {
    auto info = MR_TRY(object::Head(*place.store, key, call));
    if (!info) return Fail(Code::kNotFound, "{} does not exist; check the name with `millrace ls`", place.Name(key));
    return *std::move(info);
  }
};

/// The objects that were asked for. Thread-safe.
struct RequestedObjects {
  Mutex mutex;
  std::vector<RestoredObject> objects MR_GUARDED_BY(mutex);
};

/// Waits until each object can be read.
Status WaitFor(const std::vector<RestoredObject>& objects, const object::Call& call) {
  Duration wait = kFirstPoll;
  for (const RestoredObject& object : objects) {
    while (IsUnderWay(MR_TRY(object.Head(call)))) {
      if (!SystemClock().SleepFor(wait, call.stop)) {
        return Fail(Code::kCancelled, "interrupted; the archive goes on. Run the same command again to wait");
      }
      wait = std::min<Duration>(wait * 2, kLongestPoll);
    }
  }
  return {};
}

Result<int> Restore(const Context& context, object::Connection& connection, const RestoreFlags& flags) {
  TransferRun run(context, "restore");
  RequestedObjects requested;
  Status planned;
  for (const std::string& url : MR_TRY(flags.select.Sources(flags.urls))) {
    const Selection selection = MR_TRY(Select(connection, url, flags.select));
    const ObjectPlace& place = selection.place;
    if (place.local()) return Fail(Code::kInvalidArgument, "{} is a local path: give an s3:// URL", url);
    planned = ForEach(selection, run.call(), nullptr, [&](transfer::Item item) -> Status {
      const RestoredObject object{place, std::move(item.info.key)};
      run.Add(place.Name(object.key), "", 0, [object, &flags, &requested](const object::Call& call) -> Result<bool> {
        if (!IsArchived(MR_TRY(object.Head(call)))) return false;
        MR_TRY(object::Restore(*object.place.store, object.key, flags.options, call));
        MutexLock lock(requested.mutex);
        requested.objects.push_back(object);
        return true;
      });
      return {};
    });
    if (!planned) break;
  }
  const int exit = run.Finish(planned);
  if (exit != kExitOk || !flags.wait) return exit;
  MutexLock lock(requested.mutex);
  MR_TRY(WaitFor(requested.objects, run.call()));
  return kExitOk;
}

}  // namespace

void AddRestoreCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<RestoreFlags>();
  CLI::App* command = AddCommand(app, context, "restore", "Make archived objects readable for some days",
                                 "  millrace restore s3://bucket/old.tar --days 7\n"
                                 "  millrace restore -r s3://bucket/2019/ --tier Bulk --wait\n",
                                 [&context, flags] {
                                   return WithConnection(context, [&](object::Connection& connection) {
                                     return Restore(context, connection, *flags);
                                   });
                                 });
  command->add_option("URL", flags->urls, "s3://bucket/key; wildcards * ? [a-z]");
  flags->select.AddTo(*command);
  flags->select.AddBookkeepingTo(*command);
  command->add_option("--days", flags->options.days, "For so many days")
      ->check(Between(1, kMostDays))
      ->capture_default_str();
  command->add_option("--tier", flags->options.tier, "How fast and at which price (default: the service's)")
      ->check(OneOf({"Bulk", "Standard", "Expedited"}));
  command->add_flag("--wait", flags->wait, "Wait until the objects can be read, minutes to days");
}

}  // namespace millrace::cli
