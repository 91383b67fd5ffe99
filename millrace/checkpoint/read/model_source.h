// Where a model comes from: a checkpoint, of a run or imported, or a Hugging Face folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/checkpoint/read/held_reader.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/retention/marks.h"

namespace millrace::checkpoint {

/// A model's weights and the small files that came with it. While it lives, collectors leave the checkpoint alone,
/// where the caller may write to its bucket. Const methods are thread-safe.
class ModelSource {
 public:
  /// The checkpoint of a step, or the newest, or, where `step` is nothing and there is no checkpoint, the folder.
  /// kNotFound when there is neither. Blocks.
  static Result<ModelSource> Open(object::Connection& connection, std::string_view url,
                                  std::optional<std::uint64_t> step, const Logger& log, object::Call call = {});

  Reader& reader() const { return *held_.reader; }
  const std::string& name() const { return reader().name(); }
  /// Nothing: it is a folder.
  std::optional<std::uint64_t> step() const;
  /// A file of the model's folder, or what an import kept of it ("tokenizer.json"); nothing when there is none,
  /// kResourceExhausted beyond `most`. Blocks.
  Result<std::optional<std::string>> File(std::string_view name, std::uint64_t most, object::Call call = {}) const;

 private:
  explicit ModelSource(HeldReader held) : held_(std::move(held)) {}
  ModelSource(std::unique_ptr<Reader> reader, object::Location folder)
      : held_{std::move(reader), nullptr}, folder_(std::move(folder)) {}
  HeldReader held_;
  object::Location folder_;  ///< no store: it is a checkpoint
};

}  // namespace millrace::checkpoint
