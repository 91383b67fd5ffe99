#include "millrace/checkpoint/retention/marks.h"

#include "millrace/base/json.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Whether the step can be marked: kNotFound where it has no committed checkpoint, kBusy where a collector is at work.
Status CheckMarkable(object::Store& store, const CheckpointKeys& keys, std::uint64_t step, const object::Call& call) {
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
  return Fail(Code::kBusy,
              "step {} is being removed by garbage collection (a collector that was killed says so for a day)", step);
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
  // A collector announces itself, then looks for marks; this puts the mark, then looks for collectors. So of the two at
  // least one sees the other. The key is shared: to delete it here could remove a pin that somebody else has set.
  Status markable = CheckMarkable(*root.store, keys, step, call);
  if (markable || markable.error().code() != Code::kBusy) return markable;
  return Fail(markable.error().Context(
      "the pin is set, but it is not known whether it came in time; pin again when that is over"));
}

Status Unpin(const object::Location& root, std::uint64_t step, object::Call call) {
  const std::string key = CheckpointKeys(root.key).PinKey(step);
  if (!MR_TRY(object::Head(*root.store, key, call))) return Fail(Code::kNotFound, "step {} is not pinned", step);
  return object::Delete(*root.store, key, call);
}

Result<std::unique_ptr<Hold>> Hold::Take(const object::Location& root, std::uint64_t step, object::Call call) {
  const CheckpointKeys keys(root.key);
  std::unique_ptr<Hold> hold(new Hold(root.store, keys.NewHoldKey(step)));
  MR_TRY(Put(*root.store, hold->key_, "{}\n", call));
  MR_TRY(CheckMarkable(*root.store, keys, step, call));  // else the hold's destructor takes the mark back
  return hold;
}

Hold::~Hold() { std::ignore = object::Delete(*store_, key_); }

}  // namespace millrace::checkpoint
