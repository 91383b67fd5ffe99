#include "millrace/checkpoint/commit/pins.h"

#include "millrace/base/json.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Fails with kNotFound if the step has no committed checkpoint, and with kBusy if a collector is removing it.
Status CheckMarkable(object::ReadStore& store, const CheckpointKeys& keys, std::uint64_t step,
                     const object::Call& call) {
  bool committed = false, going = false;
  MR_TRY(object::ListAll(
      store, {.prefix = keys.MarksPrefix(step)},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& object : page.objects) {
          const auto mark = keys.ParseMark(object.key);
          going = going || (mark && mark->kind == CheckpointKeys::MarkKind::kRemoval);
          committed = committed || (object.key == keys.ManifestKey(step) && object.size != kFenceBytes);
        }
        return true;
      },
      call));
  if (!committed) return Fail(Code::kNotFound, "there is no committed checkpoint of step {}", step);
  if (!going) return {};
  return Fail(Code::kBusy, "garbage collection is removing step {} (the mark of a killed collector stays for a day)",
              step);
}

Status Put(object::Store& store, const std::string& key, const std::string& content, const object::Call& call) {
  MR_TRY(object::Put(store, key, AsBytes(content), {.content_type = "application/json"}, call));
  return {};
}

}  // namespace

Status Pin(const object::Location& root, std::uint64_t step, std::string_view by, std::string_view reason,
           object::Call call) {
  const CheckpointKeys keys(root.key);
  const Json content{{"pinned", FormatIso8601(SystemClock().Wall())}, {"by", by}, {"reason", reason}};
  MR_TRY(CheckMarkable(*root.store, keys, step, call));
  MR_TRY(Put(*root.store, keys.PinKey(step), DumpJson(content) + "\n", call));
  // A collector puts its mark, then looks for pins. This function puts the pin, then looks for collectors. So at least
  // one of the two sees the other. All pins share one key: deleting it here could remove another user's pin.
  Status markable = CheckMarkable(*root.store, keys, step, call);
  if (markable || markable.error().code() != Code::kBusy) return markable;
  return Fail(markable.error().Context("the pin is set, but it may be too late; pin again when the removal is over"));
}

Status Unpin(const object::Location& root, std::uint64_t step, object::Call call) {
  const std::string key = CheckpointKeys(root.key).PinKey(step);
  if (!MR_TRY(object::Head(*root.store, key, call))) return Fail(Code::kNotFound, "step {} is not pinned", step);
  return object::Delete(*root.store, key, call);
}

Result<std::unique_ptr<CheckpointLease>> CheckpointLease::Acquire(const object::Location& root, std::uint64_t step,
                                                                  object::Call call) {
  const CheckpointKeys keys(root.key);
  std::unique_ptr<CheckpointLease> hold(new CheckpointLease(root.store, keys.NewHoldKey(step)));
  MR_TRY(Put(*root.store, hold->key_, "{}\n", call));
  MR_TRY(CheckMarkable(*root.store, keys, step, call));  // if it fails, the hold's destructor removes the mark
  return hold;
}

CheckpointLease::~CheckpointLease() { std::ignore = object::Delete(*store_, key_); }

}  // namespace millrace::checkpoint
