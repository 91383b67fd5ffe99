#include "millrace/data/sources/survey.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <set>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/text.h"

namespace millrace::data {
namespace {

constexpr int kBarWidth = 40;  // characters; a guess: rows have about 80 columns

struct Script {
  char32_t first, last;
  std::string_view name;
};
/// Blocks of letters, ascending. Characters between them are no letters, or of rare scripts.
constexpr Script kScripts[] = {
    {'A', 'Z', "Latin"},          {'a', 'z', "Latin"},          {0xC0, 0x24F, "Latin"},
    {0x370, 0x3FF, "Greek"},      {0x400, 0x52F, "Cyrillic"},   {0x531, 0x58F, "Armenian"},
    {0x591, 0x5F4, "Hebrew"},     {0x600, 0x77F, "Arabic"},     {0x900, 0x97F, "Devanagari"},
    {0x980, 0x9FF, "Bengali"},    {0xB80, 0xBFF, "Tamil"},      {0xC00, 0xC7F, "Telugu"},
    {0xE00, 0xE7F, "Thai"},       {0x10A0, 0x10FF, "Georgian"}, {0x1100, 0x11FF, "Hangul"},
    {0x1200, 0x137F, "Ethiopic"}, {0x1E00, 0x1EFF, "Latin"},    {0x3040, 0x30FF, "Kana"},
    {0x3130, 0x318F, "Hangul"},   {0x3400, 0x9FFF, "Han"},      {0xAC00, 0xD7AF, "Hangul"},
    {0xF900, 0xFAFF, "Han"},      {0x20000, 0x3FFFF, "Han"},
};

std::string_view ScriptOf(char32_t letter) {
  auto after = std::ranges::upper_bound(kScripts, letter, {}, &Script::first);
  if (after == std::begin(kScripts) || letter > std::prev(after)->last) return {};
  return std::prev(after)->name;
}

/// Returns the next character. Any number for invalid UTF-8.
char32_t NextCharacter(std::string_view text, std::size_t& at) {
  auto lead = static_cast<unsigned char>(text[at++]);
  int more = lead < 0xC0 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t character = more == 0 ? lead : lead & (0x3F >> more);
  for (; more > 0 && at < text.size(); --more)
    character = character << 6 | (static_cast<unsigned char>(text[at++]) & 0x3F);
  return character;
}

double Percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void LengthHistogram::Add(std::uint64_t length) {
  int exponent = static_cast<int>(std::bit_width(length | (2 * kSteps - 1))) - 5;
  ++counts_[exponent * kSteps + (length >> exponent)];
  ++count_;
  sum_ += length;
  longest_ = std::max(longest_, length);
}

LengthHistogram::Step LengthHistogram::StepAt(std::size_t at) {
  std::size_t exponent = at < 2 * kSteps ? 0 : at / kSteps - 1;
  std::uint64_t first = (at - exponent * kSteps) << exponent;
  return {first, first + (std::uint64_t{1} << exponent) - 1};
}

std::uint64_t LengthHistogram::Quantile(double share) const {
  auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t at = 0; at < counts_.size(); ++at) {
    seen += counts_[at];
    if (seen > 0 && seen >= wanted) return std::min(StepAt(at).last, longest_);
  }
  return longest_;
}

std::vector<LengthHistogram::Bar> LengthHistogram::Bars() const {
  std::vector<Bar> rows;
  for (std::size_t at = 0; at < counts_.size(); ++at) {
    std::uint64_t from = std::bit_floor(StepAt(at).first);
    if (rows.empty() || rows.back().from != from) {
      if (rows.empty() && counts_[at] == 0) continue;
      rows.push_back({from, from == 0 ? 0 : 2 * from - 1, 0});
    }
    rows.back().count += counts_[at];
    if (StepAt(at).last >= longest_) break;
  }
  return rows;
}

Json LengthHistogram::ToJson(std::string_view of) const {
  Json rows = Json::array();
  for (const Bar& row : Bars()) rows.push_back({{"from", row.from}, {"to", row.to}, {"count", row.count}});
  return {{"event", "lengths"},
          {"of", of},
          {"count", count_},
          {"mean", mean()},
          {"p50", Quantile(0.5)},
          {"p90", Quantile(0.9)},
          {"p99", Quantile(0.99)},
          {"longest", longest_},
          {"histogram", std::move(rows)}};
}

std::string LengthHistogram::Summary(std::string_view of) const {
  return fmt::format("{} a record: mean {:.0f}, half have up to {}, 90 % up to {}, 99 % up to {}, the longest {}", of,
                     mean(), FormatCount(Quantile(0.5)), FormatCount(Quantile(0.9)), FormatCount(Quantile(0.99)),
                     FormatCount(longest_));
}

std::string LengthHistogram::ToText(std::string_view of) const {
  std::string text = Summary(of) + "\n";
  auto rows = Bars();
  std::uint64_t most = 1;
  for (const Bar& row : rows) most = std::max(most, row.count);
  for (const Bar& row : rows) {
    // Rounded up, so that a count above 0 is visible.
    std::uint64_t width = (row.count * kBarWidth + most - 1) / most;
    std::string bar;
    for (std::uint64_t i = 0; i < width; ++i) bar += "█";
    text += fmt::format("{:>11} … {:<11} {}{} {} ({:.1f} %)\n", FormatCount(row.from), FormatCount(row.to), bar,
                        std::string(kBarWidth - width, ' '), FormatCount(row.count), Percent(row.count, count_));
  }
  return text;
}

std::string LengthHistogram::ToSvg(std::string_view of) const {
  constexpr int kRowHeight = 22, kLeft = 190, kBar = 460, kTop = 56, kWidth = 820;
  auto rows = Bars();
  std::uint64_t most = 1;
  for (const Bar& row : rows) most = std::max(most, row.count);
  int height = kTop + kRowHeight * static_cast<int>(rows.size()) + 16;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"16\" y=\"28\" font-size=\"14\">{2}</text>\n",
      kWidth, height, Summary(of));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Bar& row = rows[i];
    int y = kTop + kRowHeight * static_cast<int>(i);
    double width = kBar * static_cast<double>(row.count) / static_cast<double>(most);
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} … {}</text>\n"
        "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"#3b6ea5\"/>\n"
        "<text x=\"{:.1f}\" y=\"{}\">{} ({:.1f} %)</text>\n",
        kLeft - 8, y + 14, FormatCount(row.from), FormatCount(row.to), kLeft, y, width, kRowHeight - 4,
        kLeft + width + 8, y + 14, FormatCount(row.count), Percent(row.count, count_));
  }
  return svg + "</svg>\n";
}

std::vector<std::string_view> ScriptNames() {
  std::set<std::string_view> names;
  for (const Script& script : kScripts) names.insert(script.name);
  return {names.begin(), names.end()};
}

std::string_view ScriptOf(std::string_view text) {
  std::map<std::string_view, std::uint64_t> letters;
  for (std::size_t at = 0; at < text.size();) {
    std::string_view script = ScriptOf(NextCharacter(text, at));
    if (!script.empty()) ++letters[script];
  }
  auto most = std::ranges::max_element(letters, {}, [](const auto& one) { return one.second; });
  return most == letters.end() ? "none" : most->first;
}

void TextSurvey::Add(std::string_view document) {
  hashes_.push_back(LoadLittle<std::uint64_t>(Sha256(AsBytes(document)).data()));
  ++scripts_[ScriptOf(document)];
}

std::uint64_t TextSurvey::Duplicates() const {
  std::vector<std::uint64_t> sorted = hashes_;
  std::ranges::sort(sorted);
  auto repeated = std::ranges::unique(sorted);
  return repeated.size();
}

std::vector<std::pair<std::string_view, std::uint64_t>> TextSurvey::Scripts() const {
  std::vector<std::pair<std::string_view, std::uint64_t>> scripts(scripts_.begin(), scripts_.end());
  std::ranges::sort(scripts, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return scripts;
}

}  // namespace millrace::data
