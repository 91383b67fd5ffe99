#include "millrace/jobs/sweep/search_space.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

/// Whole numbers up to here are exact as double.
constexpr double kMaxInteger = 9007199254740992.0;

/// Splits at commas that are in no brackets, braces or quotes.
std::vector<std::string> SplitValues(std::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = '\0';
  for (const char c : text) {
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
  }
  for (std::string& value : values) value = std::string(Trim(value));
  return values;
}

std::optional<double> NumberOf(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

Result<VariedKey> ParseRange(std::string key, VariedKey::Draw draw, std::string_view range) {
  const std::size_t dots = range.find("..");
  const auto least = NumberOf(Trim(range.substr(0, dots)));
  const auto most = dots == range.npos ? std::nullopt : NumberOf(Trim(range.substr(dots + 2)));
  if (!least || !most || *least >= *most) {
    return Fail(Code::kInvalidArgument, "{}: {} should be two numbers, the smaller one first, such as 1e-5..1e-3", key,
                range);
  }
  if (draw == VariedKey::Draw::kLog && *least <= 0) {
    return Fail(Code::kInvalidArgument, "{}: log:{} should begin above 0", key, range);
  }
  const auto is_whole = [](double value) { return std::floor(value) == value && std::abs(value) <= kMaxInteger; };
  if (draw == VariedKey::Draw::kInteger && (!is_whole(*least) || !is_whole(*most))) {
    return Fail(Code::kInvalidArgument, "{}: int:{} should have whole numbers", key, range);
  }
  return VariedKey{.key = std::move(key), .draw = draw, .least = *least, .most = *most};
}

Status RefuseTwice(const std::vector<VariedKey>& keys) {
  std::set<std::string_view> seen;
  for (const VariedKey& each : keys) {
    if (!seen.insert(each.key).second)
      return Fail(Code::kInvalidArgument, "{} is varied twice; give all its values in one place", each.key);
  }
  return {};
}

std::string DrawValue(const VariedKey& key, Random& random) {
  switch (key.draw) {
    case VariedKey::Draw::kList:
      return key.values[random.Below(key.values.size())];
    case VariedKey::Draw::kUniform:
      return fmt::format("{:.6g}", key.least + random.Uniform() * (key.most - key.least));
    case VariedKey::Draw::kLog:
      return fmt::format("{:.6g}",
                         std::exp(std::log(key.least) + random.Uniform() * (std::log(key.most) - std::log(key.least))));
    case VariedKey::Draw::kInteger:
      break;
  }
  const auto least = static_cast<std::int64_t>(key.least);
  const auto values = static_cast<std::uint64_t>(static_cast<std::int64_t>(key.most) - least) + 1;
  return std::to_string(least + static_cast<std::int64_t>(random.Below(values)));
}

}  // namespace

Result<VariedKey> ParseVariedKey(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == text.npos || equals == 0) {
    return Fail(Code::kInvalidArgument, "{} should be KEY=VALUES, such as train.optimizer.lr=1e-4,3e-4", text);
  }
  std::string key(Trim(text.substr(0, equals)));
  const std::string_view values = Trim(text.substr(equals + 1));
  for (const auto& [word, draw] :
       {std::pair("uniform:", VariedKey::Draw::kUniform), std::pair("log:", VariedKey::Draw::kLog),
        std::pair("int:", VariedKey::Draw::kInteger)}) {
    if (values.starts_with(word)) {
      return ParseRange(std::move(key), draw, values.substr(std::string_view(word).size()));
    }
  }
  VariedKey varied{.key = std::move(key), .values = SplitValues(values)};
  if (std::ranges::find(varied.values, "") != varied.values.end()) {
    return Fail(Code::kInvalidArgument, "{}: {} has an empty value; remove a comma, or write the value", varied.key,
                values);
  }
  return varied;
}

Result<std::vector<RunValues>> GridRuns(const std::vector<VariedKey>& keys) {
  MR_TRY(RefuseTwice(keys));
  std::vector<RunValues> runs(1);
  for (const VariedKey& each : keys) {
    if (each.draw != VariedKey::Draw::kList) {
      return Fail(Code::kInvalidArgument, "{} has a range: say how many values to draw (--random N), or list them",
                  each.key);
    }
    if (runs.size() * each.values.size() > kMaxSweepRuns) {
      return Fail(Code::kInvalidArgument, "there are more than {} combinations: draw some of them (--random N)",
                  FormatCount(kMaxSweepRuns));
    }
    std::vector<RunValues> longer;
    for (const RunValues& run : runs) {
      for (const std::string& value : each.values) {
        longer.push_back(run);
        longer.back().emplace_back(each.key, value);
      }
    }
    runs = std::move(longer);
  }
  return runs;
}

Result<std::vector<RunValues>> RandomRuns(const std::vector<VariedKey>& keys, std::size_t count, std::uint64_t seed) {
  MR_TRY(RefuseTwice(keys));
  std::vector<RunValues> runs(count);
  for (std::size_t n = 0; n < count; ++n) {
    Random random(Mix64(seed) + n);
    for (const VariedKey& each : keys) runs[n].emplace_back(each.key, DrawValue(each, random));
  }
  return runs;
}

}  // namespace millrace::jobs
