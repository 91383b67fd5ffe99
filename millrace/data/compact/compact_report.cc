#include "millrace/data/compact/compact_report.h"

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::data {
namespace {

constexpr std::size_t kExcerptCharacters = 60;  // a guess: fits a line of a terminal

Json CountJson(const RecordCount& count) { return {{"records", count.records}, {"bytes", count.bytes}}; }

std::string TableRow(std::string_view name, const Json& count) {
  return fmt::format("  {:<18}{:>15} records{:>13}\n", name, FormatCount(count.at("records").get<std::uint64_t>()),
                     FormatBytes(count.at("bytes").get<std::uint64_t>()));
}

}  // namespace

Json CompactReport::ToJson(const Json& options) const {
  Json removals = Json::object();
  for (std::size_t i = 0; i < kRemovalReasons; ++i) {
    if (removed[i].records == 0) continue;
    Json shown = Json::array();
    for (const RemovalExample& example : examples[i]) {
      Json one{{"source", example.source}, {"line", example.line}};
      if (!example.broken.empty()) one["broken"] = example.broken;
      if (!example.earlier.empty()) one["earlier"] = example.earlier;
      if (example.similarity) one["similarity"] = *example.similarity;
      one["text"] = example.text;
      shown.push_back(std::move(one));
    }
    Json removal = CountJson(removed[i]);
    removal["examples"] = std::move(shown);
    removals[std::string(RemovalReasonName(static_cast<RemovalReason>(i)))] = std::move(removal);
  }
  Json parts = Json::array();
  for (const CompactedShard& shard : shards) {
    parts.push_back({{"name", shard.name},
                     {"records", shard.kept.records},
                     {"bytes", shard.kept.bytes},
                     {"stored_bytes", shard.stored_bytes}});
  }
  Json input = CountJson(read);
  input["objects"] = objects;
  input["stored_bytes"] = object_bytes;
  return {{"format", "millrace-compact-1"}, {"options", options},      {"read", std::move(input)},
          {"removed", std::move(removals)}, {"kept", CountJson(kept)}, {"shards", std::move(parts)},
          {"index_bytes", index_bytes}};
}

std::string CompactReportText(const Json& report) {
  std::string text = TableRow("read", report.at("read"));
  for (const auto& [name, removal] : report.at("removed").items()) text += TableRow("- " + name, removal);
  text += TableRow("kept", report.at("kept"));
  for (const auto& [name, removal] : report.at("removed").items()) {
    text += fmt::format("{}, for example:\n", name);
    for (const Json& example : removal.at("examples")) {
      text += fmt::format("  {}:{}", example.at("source").get<std::string>(), example.at("line").get<std::uint64_t>());
      if (const Json* broken = JsonFind(example, "broken")) text += fmt::format(" {}", broken->get<std::string>());
      const Json* similarity = JsonFind(example, "similarity");
      if (const Json* earlier = JsonFind(example, "earlier")) {
        text += fmt::format(" {} {}", similarity ? "≈" : "=", earlier->get<std::string>());
      }
      if (similarity) text += fmt::format(" ({:.2f})", similarity->get<double>());
      text += fmt::format(": {}\n", example.at("text").get<std::string>());
    }
  }
  return text;
}

std::string Excerpt(std::string_view text) {
  std::string excerpt;
  std::size_t characters = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (begins && ++characters > kExcerptCharacters) return excerpt + "…";
    excerpt += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return excerpt;
}

}  // namespace millrace::data
