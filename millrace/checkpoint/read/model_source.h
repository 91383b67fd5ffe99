// A model to load: from a checkpoint of a run, from an imported one, from a Hugging Face folder, or from a GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/checkpoint/commit/pins.h"
#include "millrace/checkpoint/read/gguf_reader.h"
#include "millrace/checkpoint/read/held_reader.h"
#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

/// The file of transformers that says how a model generates.
inline constexpr std::string_view kGenerationConfigFile = "generation_config.json";

/// A model's weights and the small files that came with it. Holds the checkpoint, so that no collector removes it, if
/// the caller may write to its bucket. Const methods are thread-safe.
class ModelSource {
 public:
  /// Opens the GGUF file, if the URL ends in .gguf; else the checkpoint of `step`. Without a step, opens the newest
  /// checkpoint or, if there is none, the folder. Blocks. Errors: kNotFound if there is neither.
  static Result<ModelSource> Open(object::Connection& connection, std::string_view url,
                                  std::optional<std::uint64_t> step, const Logger& log, object::Call call = {});

  Reader& reader() const { return *held_.reader; }
  const std::string& name() const { return reader().name(); }
  /// The checkpoint's step; nothing for a folder or a GGUF file.
  std::optional<std::uint64_t> step() const;
  /// Returns a text that is the same as long as the weights are: the name, with a checkpoint's attempt or the ETags of
  /// the files of a folder or GGUF; or what SetVersion() said. Blocks.
  Result<std::string> Version(object::Call call = {}) const;
  /// For a model that was unpacked from something else, whose version this is.
  void SetVersion(std::string version) { version_ = std::move(version); }
  /// Returns a file of the model's folder, or what an import kept of it ("tokenizer.json"), or the
  /// generation_config.json that a run carried through; nothing if there is none. Blocks.
  /// Errors: kResourceExhausted if the file has more than `most` bytes.
  /// A GGUF file with a SentencePiece vocabulary has one file, "tokenizer.model".
  Result<std::optional<std::string>> File(std::string_view name, std::uint64_t most, object::Call call = {}) const;
  /// Returns the names of the files directly in a subfolder of the model's folder ("additional_chat_templates/"), as
  /// File() takes them. Blocks. Errors: those of the store.
  Result<std::vector<std::string>> FilesIn(std::string_view subfolder, object::Call call = {}) const;
  /// Returns the adapter_config.json of an adapter (LoRA); nothing for a model. Blocks.
  Result<std::optional<Json>> AdapterConfig(object::Call call = {}) const;

 private:
  explicit ModelSource(HeldReader held) : held_(std::move(held)) {}
  ModelSource(std::unique_ptr<Reader> reader, object::Location folder)
      : held_{std::move(reader), nullptr}, folder_(std::move(folder)) {}
  explicit ModelSource(std::unique_ptr<GgufReader> reader) : gguf_(reader.get()), held_{std::move(reader), nullptr} {}
  const GgufReader* gguf_ = nullptr;  ///< held_'s reader, of a GGUF file
  HeldReader held_;
  object::Location folder_;  ///< without a store for a checkpoint and a GGUF file
  std::string version_;      ///< of SetVersion(); empty: as Version() says
};

}  // namespace millrace::checkpoint
