#include "millrace/vfs/listing/page_stream.h"

#include <algorithm>
#include <set>

#include "millrace/base/result.h"
#include "millrace/object/support/early_pages.h"

namespace millrace::vfs {
namespace {

constexpr int kTrialRounds = 3;  ///< pages of each range before a trial ends; a guess
/// More ranges are worth their requests if a page takes at most 3/4 of the time that it took before; a guess.
constexpr std::pair kBetter = {3, 4};

std::string_view FirstKey(const object::ListPage& page) {
  std::string_view object = page.objects.empty() ? std::string_view() : page.objects.front().key;
  std::string_view prefix = page.common_prefixes.empty() ? std::string_view() : page.common_prefixes.front();
  return object.empty() || (!prefix.empty() && prefix < object) ? prefix : object;
}

std::string_view LastKey(const object::ListPage& page) {
  std::string_view object = page.objects.empty() ? std::string_view() : page.objects.back().key;
  std::string_view prefix = page.common_prefixes.empty() ? std::string_view() : page.common_prefixes.back();
  return std::max(object, prefix);
}

/// Returns the digits and the letters that the keys use: per case, the hexadecimal letters or all. In byte order.
std::string AlphabetOf(std::string_view first, std::string_view last) {
  std::set<char> seen;
  auto range = [&seen](char from, char to) {
    for (char c = from; c <= to; ++c) seen.insert(c);
  };
  for (char c : std::string(first) + std::string(last)) {
    if (c >= '0' && c <= '9') range('0', '9');
    if (c >= 'a' && c <= 'z') range('a', c <= 'f' ? 'f' : 'z');
    if (c >= 'A' && c <= 'Z') range('A', c <= 'F' ? 'F' : 'Z');
  }
  return {seen.begin(), seen.end()};
}

/// Adds `by` to a number written in `alphabet`. Returns false if the sum has more digits.
bool Add(std::string& number, std::string_view alphabet, std::size_t by) {
  for (auto digit = number.rbegin(); digit != number.rend() && by > 0; ++digit) {
    const std::size_t value = alphabet.find(*digit);
    if (value == std::string_view::npos) return false;
    by += value;
    *digit = alphabet[by % alphabet.size()];
    by /= alphabet.size();
  }
  return by == 0;
}

}  // namespace

std::vector<std::string> GuessSplitKeys(std::string_view prefix, std::string_view first, std::string_view last,
                                        int stride, int most) {
  const std::size_t same = static_cast<std::size_t>(std::ranges::mismatch(first, last).in1 - first.begin());
  if (same < prefix.size() || same >= last.size()) return {};
  const std::string alphabet = AlphabetOf(first.substr(same), last.substr(same));
  if (alphabet.empty()) return {};
  // The number ends before the first difference. If no digit stands there, it ends with the first difference.
  auto is_digit = [&](char c) { return alphabet.find(c) != std::string::npos; };
  std::size_t end = same > prefix.size() && is_digit(last[same - 1]) ? same : same + 1;
  std::size_t begin = end;
  while (begin > prefix.size() && is_digit(last[begin - 1])) --begin;
  std::vector<std::string> best;
  for (; stride > 0 && static_cast<int>(best.size()) < most; stride /= 2) {
    std::vector<std::string> keys;
    std::string number(last.substr(begin, end - begin));
    while (static_cast<int>(keys.size()) < most && Add(number, alphabet, static_cast<std::size_t>(stride))) {
      keys.push_back(std::string(last.substr(0, begin)) + number);
    }
    if (keys.size() > best.size()) best = std::move(keys);
  }
  return best;
}

PageStream::PageStream(object::ReadStore& store, const Clock& clock, std::string prefix, std::string after,
                       std::string until, Options options)
    : store_(store), clock_(clock), prefix_(std::move(prefix)), options_(options) {
  KeyRange& whole = ranges_.emplace_back();
  whole.after = std::move(after);
  whole.until = std::move(until);
}

PageStream::~PageStream() {
  stop_.request_stop();
  MutexLock lock(mutex_);
  while (running_ > 0) changed_.Wait(mutex_);
}

void PageStream::Start() { RequestPages(); }

/// Returns the first range that needs a page. The reader's own range always gets a page, others while there is room.
PageStream::KeyRange* PageStream::NextToRequest() {
  for (KeyRange& range : ranges_) {
    if (range.requesting || range.done || range.error) continue;
    const bool needed_now = &range == &ranges_.front() && range.pages.empty();
    if (needed_now || (requesting_ < trial_.ranges && waiting_pages_ + requesting_ < options_.most_ahead))
      return &range;
  }
  return nullptr;
}

void PageStream::RequestPages() {
  while (true) {
    object::ListRequest request{.prefix = prefix_, .delimiter = "/", .start_after = {}, .continuation = {}};
    KeyRange* range = nullptr;
    PageSlot* slot = nullptr;
    {
      MutexLock lock(mutex_);
      range = NextToRequest();
      if (!range) return;
      range->requesting = true;
      slot = &range->pages.emplace_back(clock_.Now());
      ++running_;
      if (++requesting_ == trial_.ranges && trial_.since == TimePoint()) trial_.since = slot->when;
      request.start_after = range->after;
      request.continuation = range->continuation;
    }
    auto early = std::make_shared<bool>(false);
    object::EarlyPages::List(
        store_, std::move(request), {.stop = stop_.get_token()},
        [this, range, early](std::string continuation) { *early = RequestNext(*range, std::move(continuation)); },
        [this, range, slot, early](auto answer) {
          {
            MutexLock lock(mutex_);
            OnPage(*range, *slot, std::move(answer), *early);
          }
          if (!stop_.stop_requested()) RequestPages();
          MutexLock lock(mutex_);
          --running_;
          changed_.NotifyAll();
        });
  }
}

/// Called when the store has sent where the next page begins, while the present page is still being read. Returns
/// false, and requests nothing, if the present page may be the last of its range.
bool PageStream::RequestNext(KeyRange& range, std::string continuation) {
  {
    MutexLock lock(mutex_);
    if (!range.until.empty()) return false;
    --requesting_;
    range.requesting = false;
    range.continuation = std::move(continuation);
  }
  if (!stop_.stop_requested()) RequestPages();
  return true;
}

/// `early`: RequestNext has requested the page after this one, which may be here already.
void PageStream::OnPage(KeyRange& range, PageSlot& slot, Result<object::ListPage> answer, bool early) {
  changed_.NotifyAll();
  if (!early) {
    range.requesting = false;
    --requesting_;
  }
  if (!answer && !range.done) {
    range.error = answer.error();
    return;
  }
  object::ListPage page = answer ? *std::move(answer) : object::ListPage();
  if (!early) range.continuation = page.continuation;
  range.done |= page.continuation.empty();
  page.continuation.clear();
  quickest_ = std::min<Duration>(quickest_, clock_.Now() - slot.when);
  CountPage();
  if (!range.until.empty()) {
    const std::size_t objects = page.objects.size(), prefixes = page.common_prefixes.size();
    std::erase_if(page.objects, [&](const auto& object) { return object.key > range.until; });
    std::erase_if(page.common_prefixes, [&](const auto& name) { return name > range.until; });
    range.done |= page.objects.size() < objects || page.common_prefixes.size() < prefixes;
  } else if (!range.done) {
    auto later = range.pages.rbegin();
    while (&*later != &slot && !later->here) ++later;
    if (&*later == &slot) Split(page);  // only the furthest page that has arrived
  }
  slot.page = {std::move(page), slot.when, false};
  slot.here = true;
  ++waiting_pages_;
}

/// Decides, when enough pages have come, whether to try more ranges or to go back to fewer.
void PageStream::CountPage() {
  if (trial_.decided || trial_.since == TimePoint()) return;
  if (++trial_.pages < std::max(options_.after_pages, kTrialRounds * trial_.ranges)) return;
  const Duration each = (clock_.Now() - trial_.since) / trial_.pages;
  const bool slow = trial_.ranges > 1 || each >= options_.slow_page;
  const bool better = trial_.ranges == 1 || each * kBetter.second <= trial_.each_before * kBetter.first;
  trial_.decided = !slow || !better || trial_.ranges >= options_.parallel;
  if (!better) trial_.ranges /= 2;
  if (trial_.decided) return;
  trial_ = {.ranges = std::min(2 * trial_.ranges, options_.parallel), .each_before = each};
}

/// Splits the last range behind `page`.
void PageStream::Split(const object::ListPage& page) {
  const int unfinished = static_cast<int>(std::ranges::count_if(ranges_, [](const KeyRange& p) { return !p.done; }));
  const int most = trial_.ranges - unfinished;
  if (trial_.ranges == 1 || most <= 0) return;
  constexpr int kPagesApart = 4;  // a guess: longer ranges make fewer needless requests, shorter ones arrive sooner
  for (std::string& cut : GuessSplitKeys(prefix_, FirstKey(page), LastKey(page), kPagesApart, most)) {
    ranges_.back().until = cut;
    ranges_.emplace_back().after = std::move(cut);
  }
}

bool PageStream::Ready() const {
  const KeyRange& range = ranges_.front();
  return range.pages.empty() ? range.error || range.done : range.pages.front().here || range.error;
}

bool PageStream::ready() {
  MutexLock lock(mutex_);
  return Ready();
}

bool PageStream::AwaitPage(const object::Call& call) {
  auto ready = [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return Ready(); };
  return call.deadline.infinite() ? changed_.Wait(mutex_, call.stop, ready)
                                  : changed_.WaitUntil(mutex_, call.deadline.at(), call.stop, ready);
}

std::optional<Duration> PageStream::quickest_page() {
  MutexLock lock(mutex_);
  return quickest_ == Duration::max() ? std::nullopt : std::optional(quickest_);
}

std::optional<TimePoint> PageStream::ConfirmedAt(const object::Call& call) {
  MutexLock lock(mutex_);
  const KeyRanges::iterator first = ranges_.begin();
  if (!AwaitPage(call) || first->pages.empty() || !first->pages.front().here) return std::nullopt;
  const Page& page = first->pages.front().page;
  if (page.page.objects.empty() && page.page.common_prefixes.empty()) return std::nullopt;
  return page.as_of;
}

Result<PageStream::Page> PageStream::Next(const object::Call& call) {
  RequestPages();
  Page page;
  {
    MutexLock lock(mutex_);
    while (true) {
      KeyRange& range = ranges_.front();
      if (!range.pages.empty() && range.pages.front().here) break;
      if (range.error) return Fail(*range.error);
      if (range.done && range.pages.empty()) {
        if (ranges_.size() == 1) return Page{{}, clock_.Now(), true};
        ranges_.pop_front();
        continue;
      }
      if (!AwaitPage(call)) {
        return Fail(call.stop.stop_requested() ? Code::kCancelled : Code::kDeadlineExceeded, "listing {}", prefix_);
      }
    }
    KeyRange& range = ranges_.front();
    page = std::move(range.pages.front().page);
    range.pages.pop_front();
    --waiting_pages_;
    page.last = range.done && range.pages.empty() && ranges_.size() == 1;
  }
  RequestPages();
  return page;
}

}  // namespace millrace::vfs
