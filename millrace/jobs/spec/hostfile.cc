#include "millrace/jobs/spec/hostfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

constexpr int kMaxSlots = 1 << 16;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::vector<std::string_view> WordsOf(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  for (std::size_t at = 0; at < line.size();) {
    if (IsBlank(line[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < line.size() && !IsBlank(line[end])) ++end;
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::optional<int> SlotsOf(std::string_view text) {
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc() || end != text.data() + text.size() || slots < 1 || slots > kMaxSlots) return std::nullopt;
  return slots;
}

/// Splits "n1:4". An IPv6 address has more colons, and no slots.
Result<HostSlots> ParseHost(std::string_view word) {
  const std::size_t colon = word.find(':');
  if (colon == std::string_view::npos || word.find(':', colon + 1) != std::string_view::npos) {
    return HostSlots{.host = std::string(word)};
  }
  const auto slots = SlotsOf(word.substr(colon + 1));
  if (!slots) return Fail(Code::kInvalidArgument, "{} should be a host and its slots, such as n1:4", word);
  return HostSlots{.host = std::string(word.substr(0, colon)), .slots = *slots};
}

Result<HostSlots> ParseLine(const std::vector<std::string_view>& words) {
  HostSlots entry = MR_TRY(ParseHost(words[0]));
  if (const std::string why = WhyNotAHost(entry.host); !why.empty()) return Fail(Code::kInvalidArgument, "{}", why);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string_view key = words[i].substr(0, equals);
    const auto value = equals == std::string_view::npos ? std::nullopt : SlotsOf(words[i].substr(equals + 1));
    const bool is_limit = key == "max_slots" || key == "max-slots";
    if (!value || (key != "slots" && !is_limit)) {
      return Fail(Code::kInvalidArgument, "{} is not understood; expected a line such as \"n1 slots=4\" or \"n1:4\"",
                  words[i]);
    }
    if (!is_limit) entry.slots = *value;
  }
  return entry;
}

}  // namespace

std::string WhyNotAHost(std::string_view host) {
  // ssh and the shells that it starts get the name, and files are named after it.
  const bool plain = std::ranges::all_of(host, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view(".-_@:%").find(c) != std::string_view::npos;
  });
  if (!host.empty() && plain && !host.starts_with('-') && !host.starts_with('.')) return "";
  return fmt::format("\"{}\" is not a host's name, such as n1, user@n1 or 10.0.0.1", host);
}

Result<std::vector<HostSlots>> ParseHostfile(std::string_view text, std::string_view name) {
  std::vector<HostSlots> hosts;
  int number = 0;
  for (std::string_view line : Split(text, '\n')) {
    ++number;
    const auto words = WordsOf(line);
    if (words.empty()) continue;
    const auto entry = ParseLine(words);
    if (!entry) return Fail(Code::kInvalidArgument, "{}:{}: {}", name, number, entry.error().message());
    const auto known = std::ranges::find(hosts, entry->host, &HostSlots::host);
    if (known == hosts.end()) {
      hosts.push_back(*entry);
    } else {
      // Without a number, each line is one slot, as for MPI.
      known->slots = std::min(kMaxSlots, std::max(known->slots, 1) + std::max(entry->slots, 1));
    }
  }
  if (hosts.empty()) return Fail(Code::kInvalidArgument, "{} names no host; write one host a line", name);
  return hosts;
}

}  // namespace millrace::jobs
