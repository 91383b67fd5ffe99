#include "apps/common/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMaxBar = 24, kLeastBar = 6;
constexpr Duration kWindow = std::chrono::seconds(5);  // a guess: follows a change soon, and does not flicker

std::string TimeLeft(const WorkProgress& p) {
  // While work is still being found nobody knows how much is left.
  if (!p.all_known || p.bytes_per_second <= 0 || p.bytes_known <= p.bytes_done) return "";
  const double seconds = static_cast<double>(p.bytes_known - p.bytes_done) / p.bytes_per_second;
  return "  ETA " + FormatDuration(std::chrono::seconds(static_cast<std::int64_t>(seconds) + 1));
}

std::string Items(const WorkProgress& p) {
  if (p.items_known == 0) return "";
  return fmt::format("  {}/{} item{}", p.items_done, p.items_known, p.items_known == 1 ? "" : "s");
}

/// A bar with a blank behind it, or "" if there is no room for one.
std::string Bar(double share, std::uint64_t room) {
  constexpr std::uint64_t kBrackets = 3;
  if (room < kLeastBar + kBrackets) return "";
  const std::uint64_t width = std::min(kMaxBar, room - kBrackets);
  const auto filled = std::min(width, static_cast<std::uint64_t>(share * static_cast<double>(width)));
  return fmt::format("[{:#>{}}{:.>{}}] ", "", filled, "", width - filled);
}

}  // namespace

std::string ProgressText(const WorkProgress& p, int columns) {
  const auto room = static_cast<std::uint64_t>(std::max(columns, 1));
  const bool bytes = p.bytes_known > 0;
  const std::string_view more = p.all_known ? "" : "+";
  const std::string done =
      bytes ? fmt::format("{} of {}{}", FormatBytes(p.bytes_done), FormatBytes(p.bytes_known), more) : "";
  const std::string rate =
      bytes ? fmt::format("  {}/s", FormatBytes(static_cast<std::uint64_t>(p.bytes_per_second))) : "";
  const std::string failed = p.items_failed > 0 ? fmt::format(", {} failed", p.items_failed) : "";
  // From the most text to the least.
  const std::array<std::string, 4> texts = {done + rate + TimeLeft(p) + Items(p) + failed,
                                            done + rate + TimeLeft(p) + failed, done + TimeLeft(p) + failed, done};
  const auto fits = [room](const std::string& text) { return text.size() <= room; };
  const auto found = std::ranges::find_if(texts, fits);
  std::string text = found == texts.end() ? texts.back().substr(0, room) : *found;
  if (const std::size_t begin = text.find_first_not_of(' '); begin != std::string::npos) text.erase(0, begin);
  const double share = bytes               ? static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes_known)
                       : p.items_known > 0 ? static_cast<double>(p.items_done) / static_cast<double>(p.items_known)
                                           : 0.0;
  return Bar(share, room - text.size()) + text;
}

void RecentRate::Add(TimePoint now, std::uint64_t bytes) {
  samples_.emplace_back(now, bytes);
  while (samples_.size() > 2 && now - samples_[1].first >= kWindow) samples_.pop_front();
}

double RecentRate::bytes_per_second() const {
  if (samples_.size() < 2 || samples_.back().second <= samples_.front().second) return 0;
  const double seconds = std::chrono::duration<double>(samples_.back().first - samples_.front().first).count();
  return static_cast<double>(samples_.back().second - samples_.front().second) / std::max(seconds, 1e-3);
}

}  // namespace millrace::cli
