#include "millrace/object/support/conditions.h"

#include <map>
#include <string>

#include "millrace/base/hash/random.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"

namespace millrace::object {
namespace {

/// An unreachable service must not delay a program for long: its first write reports the same error.
constexpr auto kPatience = std::chrono::seconds(15);

/// The test results of this process. They describe services, not open stores, so all stores share them.
struct KnownServices {
  Mutex mutex;
  std::map<std::string, ConditionSupport> support MR_GUARDED_BY(mutex);
};
KnownServices& Known() {
  static KnownServices known;
  return known;
}

Result<ConditionSupport> Ask(Store& store, const std::string& key, const Call& call) {
  const PutResult first = MR_TRY(Put(store, key, AsBytes(std::string_view("first\n")), {.if_none_match = true}, call));
  // The store must refuse both: the key exists, and no version has this ETag.
  const PutOptions impossible[] = {{.if_none_match = true}, {.if_match = "00000000000000000000000000000000"}};
  for (const PutOptions& options : impossible) {
    const auto put = Put(store, key, AsBytes(std::string_view("second\n")), options, call);
    if (put) return ConditionSupport::kIgnored;
    if (put.error().code() != Code::kPreconditionFailed) return Fail(put.error());
  }
  const auto replaced = Put(store, key, AsBytes(std::string_view("third\n")), {.if_match = first.etag}, call);
  if (!replaced && replaced.error().code() == Code::kPreconditionFailed) return ConditionSupport::kNeverHold;
  if (!replaced) return Fail(replaced.error());
  return ConditionSupport::kHonoured;
}

}  // namespace

Result<ConditionSupport> ProbeConditions(Store& store, std::string_view prefix, Call call) {
  const std::string identity = store.Identity();
  if (identity.starts_with("file:") || identity.starts_with("memory:")) return ConditionSupport::kHonoured;
  KnownServices& known = Known();
  MutexLock lock(known.mutex);
  if (const auto found = known.support.find(identity); found != known.support.end()) return found->second;
  std::string key(prefix);
  if (!key.empty() && !key.ends_with('/')) key += '/';
  key += ".millrace/conditions-" + SecureHex(8);
  if (call.deadline.infinite()) call.deadline = Deadline::After(SystemClock(), kPatience);
  const auto support = Ask(store, key, call);
  std::ignore = Delete(store, key, call);
  if (support) known.support.emplace(identity, *support);
  return support;
}

Status RequireConditions(Store& store, std::string_view prefix, std::string_view advice, Call call) {
  const auto support = ProbeConditions(store, prefix, std::move(call));
  if (!support || *support == ConditionSupport::kHonoured) return {};
  if (*support == ConditionSupport::kNeverHold) {
    return Fail(Code::kUnsupported,
                "{} refuses a write with If-Match although the object has this ETag, so nothing could be replaced "
                "safely; {}",
                store.Describe(), advice);
  }
  return Fail(Code::kUnsupported,
              "{} ignores the conditions of writes (If-None-Match, If-Match), so two writers could destroy each "
              "other's work without a word; {}",
              store.Describe(), advice);
}

}  // namespace millrace::object
