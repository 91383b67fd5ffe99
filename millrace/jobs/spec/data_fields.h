// The declarations of the keys of `data`, and of the objective, which decides what rows hold.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/spec/spec_visitor.h"

namespace millrace::jobs {

inline constexpr std::int64_t kMaxSteps = std::int64_t{1} << 40;

/// Visits a word whose value is not stored as text.
template <class Visitor, class Value, class Name, class Parse>
void VisitWordOf(Visitor& v, const Key& key, Value& value, Choice choice, Name name, Parse parse) {
  std::string word(name(value));
  v.Word(key, word, choice);
  value = parse(word);
}

template <class Visitor>
void VisitSource(Visitor& v, data::DataSource& source) {
  v.Text(Key("url",
             "The objects with the records: an object, a prefix that ends in `/`, a glob, or `@` and the URL of a "
             "list of such URLs."),
         source.url, TextKind::kData, true);
  v.Number(Key("weight", "Passes over this source per epoch."), source.weight, 1e-6, 1000);
  v.Text(Key("format", "What the objects contain.").Form("a word, see below").Unset("by name, else `jsonl`"),
         source.format, TextKind::kPlain, false);
  v.Text(Key("split", "The split of a data set, for example `train`.").Form("name"), source.split, TextKind::kPlain,
         false);
}

template <class Visitor>
void VisitLayout(Visitor& v, data::DatasetOptions& data, std::initializer_list<std::string_view> words) {
  VisitWordOf(
      v, Key("layout", "The layout of the records' conversations."), data.layout, {words, {}},
      [](const std::string& layout) { return layout.empty() ? "template" : layout; },
      [](const std::string& word) { return word == "template" ? "" : word; });
}

/// The condition that the objective is one of some.
inline Condition WithObjective(data::Objective objective, std::initializer_list<std::string_view> words) {
  const std::string_view name = data::ObjectiveName(objective);
  return {std::ranges::find(words, name) != words.end(), "train.objective", words,
          fmt::format("leave it out: train.objective {} has no {{}}", name)};
}

/// Visits the keys of rows whose tokens are learnt one after another.
template <class Visitor>
void VisitTextRows(Visitor& v, data::DatasetOptions& data) {
  v.Only(WithObjective(data.objective, {"causal_lm"}), [&](auto& o) {
    VisitWordOf(o, Key("mode", "How records fill sequences."), data.mode, {{"pack", "pad", "sft"}, {}},
                data::SequenceModeName,
                [&](const std::string& word) { return data::ParseSequenceMode(word).value_or(data.mode); });
    VisitLayout(o, data,
                {"template", "auto", "alpaca", "guanaco", "turns", "llama2", "llama3", "chatml", "zephyr", "gemma"});
  });
  v.Only(WithObjective(data.objective, {"dpo"}),
         [&](auto& o) { VisitLayout(o, data, {"template", "auto", "llama2", "llama3", "chatml", "zephyr", "gemma"}); });
  v.Only(WithObjective(data.objective, {"causal_lm"}), [&](auto& o) {
    o.Text(Key("response", "For `layout: template`: the answer of a record, in `mode: sft`."), data.response_text,
           TextKind::kPlain, true);
    o.Only({data.layout == "turns", "data.layout", {"turns"}, "leave it out: another layout than turns has no {}"},
           [&](auto& t) {
             t.Text(Key("instruction_template", "What begins a prompt."), data.instruction_template, TextKind::kPlain,
                    false);
             t.Text(Key("response_template", "What begins an answer."), data.response_template, TextKind::kPlain, true);
           });
  });
  v.Only(WithObjective(data.objective, {"causal_lm", "dpo"}), [&](auto& o) {
    o.Flag(Key("best_fit", "For `pad`, `sft` and `dpo`: fit whole documents into rows."), data.best_fit);
  });
  v.Only(WithObjective(data.objective, {"causal_lm"}), [&](auto& o) {
    o.Flag(Key("split_long", "For `pad`: split a long document into several sequences."), data.split_long);
    o.Flag(Key("boundaries", "Keep documents of one row apart."), data.boundaries);
  });
}

/// Visits the sections that one objective has and the others lack.
template <class Visitor>
void VisitObjectives(Visitor& v, data::DatasetOptions& data) {
  v.Only(WithObjective(data.objective, {"mlm"}), [&](auto& o) {
    o.Section(Key("mlm", "Pairs of texts and hidden tokens."), [&](auto& m) {
      m.Number(Key("probability", "Share of a row's tokens that are to be predicted."), data.mlm.probability, 1e-6,
               0.999);
      m.OptionalInteger(Key("max_predictions", "The most tokens of a row to predict.")
                            .Form("1 … `sequence_length`")
                            .Unset("`probability` · `sequence_length`"),
                        data.mlm.max_predictions, 1, 1 << 20);
      m.Flag(Key("whole_word", "Mask all pieces of a word or none of them."), data.mlm.whole_word);
      m.Flag(Key("next_sentence", "Rows are pairs of texts, half of them random."), data.mlm.next_sentence);
      m.Number(Key("short_sequences", "Share of the rows that are cut to a random length."), data.mlm.short_sequences,
               0, 1);
    });
  });
  v.Only(WithObjective(data.objective, {"classification"}), [&](auto& o) {
    o.Section(Key("classification", "The fields of a record."), [&](auto& c) {
      c.Text(Key("text", "The text to be classified.").Form("field"), data.classification.text, TextKind::kPlain, true);
      c.Text(Key("pair", "A second text.").Form("field"), data.classification.pair, TextKind::kPlain, false);
      c.Text(Key("label", "The class of the record.").Form("field"), data.classification.label, TextKind::kPlain, true);
      c.Texts(Key("classes", "The names of the classes in order. Without names, labels are numbers from 0."),
              data.classification.classes);
    });
  });
  v.Only(WithObjective(data.objective, {"dpo"}), [&](auto& o) {
    o.Only({data.layout.empty(), "data.layout", {"template"}, "leave it out: a layout of conversations has no {}"},
           [&](auto& t) {
             t.Section(Key("preference", "The prompt and its two answers."), [&](auto& p) {
               p.Text(Key("prompt", "Template of the prompt."), data.preference.prompt, TextKind::kPlain, true);
               p.Text(Key("chosen", "Template of the better answer."), data.preference.chosen, TextKind::kPlain, true);
               p.Text(Key("rejected", "Template of the other answer."), data.preference.rejected, TextKind::kPlain,
                      true);
             });
           });
  });
}

template <class Visitor>
void VisitData(Visitor& v, DataSpec& spec) {
  data::DatasetOptions& data = spec.dataset;
  v.Sources(Key("sources", "Where the records are: see `data.sources`."), data.sources);
  v.Only(WithObjective(data.objective, {"causal_lm", "mlm"}), [&](auto& o) {
    o.Text(Key("template",
               "How a record becomes text: fields of the record in braces. `{{` and `}}` are braces "
               "themselves."),
           data.template_text, TextKind::kPlain, true);
  });
  v.Text(Key("tokenizer", "The tokenizer's file, or a model that came with one, named as in `model.from`."),
         spec.tokenizer, TextKind::kUrl, true);
  v.Integer(Key("sequence_length", "Length of one sequence.").In("tokens"), data.sequence_length, 2, 1 << 20);
  VisitTextRows(v, data);
  VisitObjectives(v, data);
  v.Section(Key("split", "Which part of the records is held out."), [&](auto& s) {
    s.Number(Key("held_out", "Share of the records in the part `held_out`, chosen by content."), data.split.held_out, 0,
             0.999);
    VisitWordOf(s, Key("part", "The part that is read."), data.split.part, {{"train", "held_out"}, {}},
                data::SplitPartName,
                [&](const std::string& word) { return data::ParseSplitPart(word).value_or(data.split.part); });
    s.Integer(Key("seed", "Seed of the choice."), data.split.seed, 0, kAnyCount);
  });
  v.Section(Key("shuffle", "How the order is shuffled."), [&](auto& s) {
    s.Integer(Key("seed", "Seed of the order."), data.shuffle_seed, 0, kAnyCount);
    s.Integer(
        Key("window", "The number of records among which the order is random. 0 or 1: each source keeps its order.")
            .In("records"),
        data.shuffle_window, 0, kMaxSteps);
  });
  v.OptionalInteger(
      Key("max_broken", "Number of unusable records that are allowed.").In("records").Unset("100, or 0.1 % of all"),
      data.max_broken, 0, kAnyCount);
  v.Flag(Key("same_by_size", "Objects of the same sizes count as the same data."), data.same_by_size);
  v.Text(Key("index_cache", "Where record indexes go, if the bucket of the data cannot be written.")
             .Unset("beside the data"),
         data.cache_url, TextKind::kUrl, false);
  v.Section(Key("cache", "A local disk that keeps fetched and decoded data."), [&](auto& c) {
    std::string path = data.disk_cache.native();
    c.Text(Key("path", "Folder on a local disk."), path, TextKind::kFolder, false);
    data.disk_cache = path;
    c.Bytes(Key("size", "Largest size of the folder. The least recently used data make room."), data.disk_cache_bytes,
            3 * kMiB);
  });
  v.Integer(Key("threads", "Threads per rank that read and tokenize ahead."), data.threads, 1, 256);
}

template <class Visitor>
void VisitObjective(Visitor& v, data::Objective& objective) {
  VisitWordOf(v, Key("objective", "What the model learns."), objective,
              {{"causal_lm", "mlm", "classification", "dpo"}, {}}, data::ObjectiveName,
              [&](const std::string& word) { return data::ParseObjective(word).value_or(objective); });
}

}  // namespace millrace::jobs
