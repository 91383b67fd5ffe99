// millrace data inspect, after its list of objects: the lengths of records, their scripts and duplicates.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "apps/millrace/data/data_inspect.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/data/documents/document_reader.h"
#include "millrace/data/sources/survey.h"

namespace millrace::cli {

Status PrintLengths(const Context& context, std::span<const data::RecordIndex> indexes, bool counts_tokens,
                    const std::string& picture) {
  data::LengthHistogram lengths;
  std::vector<data::RecordExtent> extents;
  bool tokens = counts_tokens || std::ranges::all_of(indexes, [](const auto& one) { return one.token_bytes() > 0; });
  for (const data::RecordIndex& index : indexes) {
    for (std::size_t b = 0; b < index.blocks(); ++b) {
      extents.clear();
      index.Decode(b, extents);
      for (const data::RecordExtent& extent : extents) lengths.Add(tokens ? extent.tokens : extent.bytes);
    }
  }
  if (lengths.count() == 0) return {};
  std::string_view of = tokens ? "tokens" : "bytes";
  if (!picture.empty()) MR_TRY(WriteFileAtomic(picture, AsBytes(lengths.ToSvg(of))));
  if (context.globals.json) {
    PrintJsonLine(lengths.ToJson(of));
  } else {
    PrintListing("{}", lengths.ToText(of));
  }
  return {};
}

Status PrintSurvey(const Context& context, const data::DatasetOptions& options) {
  auto connection = MR_TRY(context.Connect());
  auto record_template = MR_TRY(data::RecordTemplate::Parse(options.template_text));
  auto reader =
      MR_TRY(data::DocumentReader::Open(*connection, options.sources, record_template, {.stop = context.stop}));
  data::TextSurvey survey;
  std::string document;
  while (MR_TRY(reader.Next(document))) survey.Add(document);
  std::uint64_t duplicates = survey.Duplicates();
  if (context.globals.json) {
    Json scripts = Json::object();
    for (auto [name, count] : survey.Scripts()) scripts[std::string(name)] = count;
    PrintJsonLine({{"event", "text"},
                   {"documents", survey.documents()},
                   {"duplicates", duplicates},
                   {"scripts", std::move(scripts)}});
    return {};
  }
  auto percent = [&](std::uint64_t part) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(survey.documents(), 1));
  };
  PrintListing("scripts:");
  std::string_view separator = " ";
  for (auto [name, count] : survey.Scripts()) {
    PrintListing("{}{} {:.1f} %", std::exchange(separator, ", "), name, percent(count));
  }
  PrintListing(" of {} documents\nduplicates: {} ({:.1f} %) say what another one says\n",
               FormatCount(survey.documents()), FormatCount(duplicates), percent(duplicates));
  return {};
}

Result<std::string> ShowTokens(const tokenizer::Tokenizer& tokenizer, std::span<const tokenizer::TokenId> inputs,
                               std::span<const tokenizer::TokenId> labels) {
  std::string shown;
  bool masked = false;
  for (std::size_t t = 0; t < inputs.size();) {
    // labels[at - 1] is the label for token `at`. The label for token 0 is not in this row; it counts as not masked.
    auto is_masked = [&](std::size_t at) { return at > 0 && labels[at - 1] == data::kIgnoreLabel; };
    std::size_t end = t + 1;
    while (end < inputs.size() && inputs[end] == inputs[t] && is_masked(end) == is_masked(t)) ++end;
    if (t > 0 && masked && !is_masked(t)) shown += "›";
    if (t > 0) shown += "│";
    if (!masked && is_masked(t)) shown += "‹";
    masked = is_masked(t);
    shown += MR_TRY(tokenizer.Piece(inputs[t]));
    if (end > t + 1) shown += fmt::format(" ×{}", end - t);
    t = end;
  }
  return masked ? shown + "›" : shown;
}

Result<std::string> ShowBertRow(const tokenizer::Tokenizer& tokenizer, const data::SequenceRow& row) {
  std::string shown;
  for (std::size_t t = 0; t < static_cast<std::size_t>(row.length); ++t) {
    if (t > 0) shown += ' ';
    const std::string piece = MR_TRY(tokenizer.Piece(row.inputs[t]));
    if (row.labels[t] == data::kIgnoreLabel) {
      shown += piece;
    } else {
      shown += fmt::format("‹{}: {}›", MR_TRY(tokenizer.Piece(row.labels[t])), piece);
    }
  }
  return shown;
}

}  // namespace millrace::cli
