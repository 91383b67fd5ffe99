#include "millrace/transfer/plan/sync_plan.h"

#include <chrono>

namespace millrace::transfer {
namespace {

/// The filtered items of a stream, one at a time. Checks that the stream is sorted.
class Cursor {
 public:
  Cursor(ItemStream& stream, const NameFilter& filter) : stream_(stream), filter_(filter) {}
  Status Advance() {
    for (;;) {
      std::optional<Item> next = MR_TRY(stream_.Next());
      if (next && seen_any_ && next->name <= last_) {
        return Fail(
            Code::kUnsupported,
            "a listing is out of order: {:?} after {:?}. sync compares listings in the order of keys; from such a "
            "store, use `cp -r`",
            next->name, last_);
      }
      if (next) last_ = next->name;
      seen_any_ = true;
      current_ = std::move(next);
      if (!current_ || filter_.Passes(current_->name)) return {};
    }
  }
  std::optional<Item>& current() { return current_; }

 private:
  ItemStream& stream_;
  const NameFilter& filter_;
  std::string last_;
  bool seen_any_ = false;
  std::optional<Item> current_;
};

}  // namespace

bool NeedsCopy(const object::ObjectInfo& source, const object::ObjectInfo& destination, const SyncRules& rules) {
  if (source.size != destination.size) return true;
  if (rules.size_only) return false;
  // S3 keeps whole seconds, file systems keep fractions.
  auto from = std::chrono::floor<std::chrono::seconds>(source.modified);
  auto to = std::chrono::floor<std::chrono::seconds>(destination.modified);
  return rules.exact_timestamps ? from != to : from > to;
}

Status PlanSync(ItemStream& source, ItemStream& destination, const SyncRules& rules,
                const std::function<Status(SyncAction)>& act) {
  Cursor from(source, rules.filter), to(destination, rules.filter);
  MR_TRY(from.Advance());
  MR_TRY(to.Advance());
  if (rules.delete_extra && !rules.allow_empty_source && !from.current() && to.current()) {
    return Fail(Code::kNotFound,
                "the source is empty: all that the destination has would be deleted. Check the source's name, or say "
                "--allow-empty-source");
  }
  while (from.current() || to.current()) {
    std::optional<Item>&have = from.current(), &there = to.current();
    int order = !there ? -1 : !have ? 1 : have->name.compare(there->name);
    if (order > 0) {
      // The marker of a folder, or a symbolic link to a folder, is not extra while the source has names below it. The
      // destination's own marker (its name is empty) never is.
      const bool needed =
          there->name.empty() || (have && there->name.ends_with('/') && have->name.starts_with(there->name));
      if (rules.delete_extra && !needed) MR_TRY(act({SyncAction::Operation::kDelete, std::move(*there)}));
      MR_TRY(to.Advance());
      continue;
    }
    bool copy = order < 0 || NeedsCopy(have->info, there->info, rules);
    MR_TRY(act({copy ? SyncAction::Operation::kCopy : SyncAction::Operation::kSame, std::move(*have)}));
    MR_TRY(from.Advance());
    if (order == 0) MR_TRY(to.Advance());
  }
  return {};
}

}  // namespace millrace::transfer
