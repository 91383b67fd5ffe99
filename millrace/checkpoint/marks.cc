#include "millrace/checkpoint/marks.h"

#include "millrace/checkpoint/layout.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Puts the mark, then looks whether it came in time. A collector does the same the other way round: it announces
/// itself, then looks for marks; so of the two at least one sees the other.
Status PutMark(object::Store& store, const Layout& layout, std::uint64_t step, const std::string& key,
               const std::string& content, const object::Call& call) {
  MR_TRY(object::Put(store, key, AsBytes(content), {.content_type = "application/json"}, call));
  bool committed = false, going = false;
  MR_TRY(object::ListAll(
      store, {.prefix = layout.MarksPrefix(step)},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& object : page.objects) {
          const auto mark = layout.ParseMark(object.key);
          going = going || (mark && mark->kind == Layout::Mark::Kind::kGoing);
          committed = committed || (object.key == layout.ManifestKey(step) && object.size >= kFenceLimit);
        }
        return true;
      },
      call));
  if (committed && !going) return {};
  MR_TRY(object::Delete(store, key, call));
  if (!committed) return Fail(Code::kNotFound, "there is no committed checkpoint of step {}", step);
  return Fail(Code::kBusy,
              "step {} is being removed by garbage collection (a collector that was killed says so for a day)", step);
}

}  // namespace

Status Pin(const object::Location& root, std::uint64_t step, std::string_view by, std::string_view reason,
           object::Call call) {
  const Layout layout(root.key);
  const Json content{{"pinned", FormatIso8601(SystemClock().Wall())}, {"by", by}, {"reason", reason}};
  return PutMark(*root.store, layout, step, layout.PinKey(step), DumpJson(content) + "\n", call);
}

Status Unpin(const object::Location& root, std::uint64_t step, object::Call call) {
  const std::string key = Layout(root.key).PinKey(step);
  if (!MR_TRY(object::Head(*root.store, key, call))) return Fail(Code::kNotFound, "step {} is not pinned", step);
  return object::Delete(*root.store, key, call);
}

Result<std::unique_ptr<Hold>> Hold::Take(const object::Location& root, std::uint64_t step, object::Call call) {
  const Layout layout(root.key);
  std::unique_ptr<Hold> hold(new Hold(root.store, layout.NewHoldKey(step)));
  MR_TRY(PutMark(*root.store, layout, step, hold->key_, "{}\n", call));
  return hold;
}

Result<HeldReader> OpenHeld(object::Connection& connection, std::string_view url, std::optional<std::uint64_t> step,
                            const Logger& log, object::Call call) {
  const object::Location root = MR_TRY(object::Locate(connection, url));
  for (int tries = 3;; --tries) {
    auto reader = MR_TRY(Reader::Open(connection, url, step, call));
    auto hold = Hold::Take(root, reader->manifest().step, call);
    if (hold) return HeldReader{std::move(reader), *std::move(hold)};
    if (hold.error().code() == Code::kCancelled) return Fail(hold.error());
    const bool going = hold.error().code() == Code::kNotFound || hold.error().code() == Code::kBusy;
    if (going && tries > 1) continue;
    log.Info("reading without a hold; garbage collection may remove the checkpoint meanwhile",
             {{"checkpoint", reader->name()}, {"error", hold.error()}});
    return HeldReader{std::move(reader), nullptr};
  }
}

Hold::~Hold() { std::ignore = object::Delete(*store_, key_); }

}  // namespace millrace::checkpoint
