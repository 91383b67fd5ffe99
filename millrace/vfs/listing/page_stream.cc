#include "millrace/vfs/listing/page_stream.h"

#include <algorithm>
#include <set>

#include "millrace/object/support/early_pages.h"

namespace millrace::vfs {
namespace {

constexpr int kTrialRounds = 3;        ///< pages for each piece before a trial ends
constexpr std::pair kBetter = {3, 4};  ///< of the time that a page took, at most so much is worth more pieces

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

/// Digits, and hexadecimal or all letters where the keys have some, in the order of their bytes.
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

/// Adds `by` to a number written in `alphabet`; false when it has too few digits for that.
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

std::vector<std::string> GuessCuts(std::string_view prefix, std::string_view first, std::string_view last, int stride,
                                   int most) {
  const std::size_t same = static_cast<std::size_t>(std::ranges::mismatch(first, last).in1 - first.begin());
  if (same < prefix.size() || same >= last.size()) return {};
  const std::string alphabet = AlphabetOf(first.substr(same), last.substr(same));
  if (alphabet.empty()) return {};
  // The number is what stands before the first difference; where that is nothing, or no number, the difference itself
  // is.
  auto is_digit = [&](char c) { return alphabet.find(c) != std::string::npos; };
  std::size_t end = same > prefix.size() && is_digit(last[same - 1]) ? same : same + 1;
  std::size_t begin = end;
  while (begin > prefix.size() && is_digit(last[begin - 1])) --begin;
  std::vector<std::string> best;
  for (; stride > 0 && static_cast<int>(best.size()) < most; stride /= 2) {
    std::vector<std::string> cuts;
    std::string number(last.substr(begin, end - begin));
    while (static_cast<int>(cuts.size()) < most && Add(number, alphabet, static_cast<std::size_t>(stride))) {
      cuts.push_back(std::string(last.substr(0, begin)) + number);
    }
    if (cuts.size() > best.size()) best = std::move(cuts);
  }
  return best;
}

PageStream::PageStream(object::Store& store, const Clock& clock, std::string prefix, std::string after,
                       std::string until, Options options)
    : store_(store), clock_(clock), prefix_(std::move(prefix)), options_(options) {
  Piece& whole = pieces_.emplace_back();
  whole.after = std::move(after);
  whole.until = std::move(until);
}

PageStream::~PageStream() {
  stop_.request_stop();
  MutexLock lock(mutex_);
  while (running_ > 0) changed_.Wait(mutex_);
}

void PageStream::Start() { Ask(); }

/// The first piece that needs a page; the reader's own always gets one, others as far as there is room.
PageStream::Piece* PageStream::NextToAsk() {
  for (Piece& piece : pieces_) {
    if (piece.asking || piece.done || piece.error) continue;
    const bool needed_now = &piece == &pieces_.front() && piece.pages.empty();
    if (needed_now || (asking_ < trial_.pieces && waiting_pages_ + asking_ < options_.most_ahead)) return &piece;
  }
  return nullptr;
}

void PageStream::Ask() {
  while (true) {
    object::ListRequest request{.prefix = prefix_, .delimiter = "/", .start_after = {}, .continuation = {}};
    Piece* piece = nullptr;
    Asked* asked = nullptr;
    {
      MutexLock lock(mutex_);
      piece = NextToAsk();
      if (!piece) return;
      piece->asking = true;
      asked = &piece->pages.emplace_back(clock_.Now());
      ++running_;
      if (++asking_ == trial_.pieces && trial_.since == TimePoint()) trial_.since = asked->when;
      request.start_after = piece->after;
      request.continuation = piece->continuation;
    }
    auto early = std::make_shared<bool>(false);
    object::EarlyPages::List(
        store_, std::move(request), {.stop = stop_.get_token()},
        [this, piece, early](std::string continuation) { *early = AskNext(*piece, std::move(continuation)); },
        [this, piece, asked, early](auto answer) {
          {
            MutexLock lock(mutex_);
            Take(*piece, *asked, std::move(answer), *early);
          }
          if (!stop_.stop_requested()) Ask();
          MutexLock lock(mutex_);
          --running_;
          changed_.NotifyAll();
        });
  }
}

/// The store has told where the page after one begins that is still being read. False where the one may be the last.
bool PageStream::AskNext(Piece& piece, std::string continuation) {
  {
    MutexLock lock(mutex_);
    if (!piece.until.empty()) return false;
    --asking_;
    piece.asking = false;
    piece.continuation = std::move(continuation);
  }
  if (!stop_.stop_requested()) Ask();
  return true;
}

/// `early`: the page after it may have been asked for, and may be here, already.
void PageStream::Take(Piece& piece, Asked& asked, Result<object::ListPage> answer, bool early) {
  changed_.NotifyAll();
  if (!early) {
    piece.asking = false;
    --asking_;
  }
  if (!answer && !piece.done) {
    piece.error = answer.error();
    return;
  }
  object::ListPage page = answer ? *std::move(answer) : object::ListPage();
  if (!early) piece.continuation = page.continuation;
  piece.done |= page.continuation.empty();
  page.continuation.clear();
  quickest_ = std::min<Duration>(quickest_, clock_.Now() - asked.when);
  CountPage();
  if (!piece.until.empty()) {
    const std::size_t objects = page.objects.size(), prefixes = page.common_prefixes.size();
    std::erase_if(page.objects, [&](const auto& object) { return object.key > piece.until; });
    std::erase_if(page.common_prefixes, [&](const auto& name) { return name > piece.until; });
    piece.done |= page.objects.size() < objects || page.common_prefixes.size() < prefixes;
  } else if (!piece.done) {
    auto later = piece.pages.rbegin();
    while (&*later != &asked && !later->here) ++later;
    if (&*later == &asked) Cut(page);  // what came before this one is not looked at again
  }
  asked.page = {std::move(page), asked.when, false};
  asked.here = true;
  ++waiting_pages_;
}

/// Decides, when enough pages have come, whether more pieces shall be tried or fewer kept.
void PageStream::CountPage() {
  if (trial_.decided || trial_.since == TimePoint()) return;
  if (++trial_.pages < std::max(options_.after_pages, kTrialRounds * trial_.pieces)) return;
  const Duration each = (clock_.Now() - trial_.since) / trial_.pages;
  const bool slow = trial_.pieces > 1 || each >= options_.slow_page;
  const bool better = trial_.pieces == 1 || each * kBetter.second <= trial_.each_before * kBetter.first;
  trial_.decided = !slow || !better || trial_.pieces >= options_.parallel;
  if (!better) trial_.pieces /= 2;
  if (trial_.decided) return;
  trial_ = {.pieces = std::min(2 * trial_.pieces, options_.parallel), .each_before = each};
}

/// Makes pieces of what is behind a page of the last piece.
void PageStream::Cut(const object::ListPage& page) {
  const int unfinished = static_cast<int>(std::ranges::count_if(pieces_, [](const Piece& p) { return !p.done; }));
  const int most = trial_.pieces - unfinished;
  if (trial_.pieces == 1 || most <= 0) return;
  constexpr int kPagesApart = 4;
  for (std::string& cut : GuessCuts(prefix_, FirstKey(page), LastKey(page), kPagesApart, most)) {
    pieces_.back().until = cut;
    pieces_.emplace_back().after = std::move(cut);
  }
}

bool PageStream::Ready() const {
  const Piece& piece = pieces_.front();
  return piece.pages.empty() ? piece.error || piece.done : piece.pages.front().here || piece.error;
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

std::optional<TimePoint> PageStream::Proof(const object::Call& call) {
  MutexLock lock(mutex_);
  const Pieces::iterator first = pieces_.begin();
  if (!AwaitPage(call) || first->pages.empty() || !first->pages.front().here) return std::nullopt;
  const Page& page = first->pages.front().page;
  if (page.page.objects.empty() && page.page.common_prefixes.empty()) return std::nullopt;
  return page.as_of;
}

Result<PageStream::Page> PageStream::Next(const object::Call& call) {
  Ask();
  Page page;
  {
    MutexLock lock(mutex_);
    while (true) {
      Piece& piece = pieces_.front();
      if (!piece.pages.empty() && piece.pages.front().here) break;
      if (piece.error) return Fail(*piece.error);
      if (piece.done && piece.pages.empty()) {
        if (pieces_.size() == 1) return Page{{}, clock_.Now(), true};
        pieces_.pop_front();
        continue;
      }
      if (!AwaitPage(call)) {
        return Fail(call.stop.stop_requested() ? Code::kCancelled : Code::kDeadlineExceeded, "listing {}", prefix_);
      }
    }
    Piece& piece = pieces_.front();
    page = std::move(piece.pages.front().page);
    piece.pages.pop_front();
    --waiting_pages_;
    page.last = piece.done && piece.pages.empty() && pieces_.size() == 1;
  }
  Ask();
  return page;
}

}  // namespace millrace::vfs
