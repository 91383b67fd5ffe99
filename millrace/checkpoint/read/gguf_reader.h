// GGUF files behind the interface of checkpoints, so that model.from and `millrace serve` load them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/gguf/gguf_model.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// Reads a file's tensors as Hugging Face names them, and decodes them. Quantized tensors are F32. The manifest has the
/// tensors and config.json, but no slices. The file has no checksums. Immutable, therefore thread-safe.
class GgufReader final : public Reader {
 public:
  /// Blocks. Errors: those of OpenGgufFile.
  static Result<std::unique_ptr<GgufReader>> Open(object::Connection& connection, std::string_view url,
                                                  object::Call call = {});

  const Manifest& manifest() const override { return manifest_; }
  const std::string& name() const override { return name_; }
  /// Holds a tensor, or the part of it that a range covers, in memory twice.
  Status Read(std::string_view tensor, std::uint64_t begin, MutableByteSpan into, object::Call call) override;
  Status ReadMany(const std::vector<TensorRange>& wanted, int parallel, object::Call call) override;
  /// Reads every byte. There is nothing to compare them with.
  Result<VerifyStats> Verify(int parallel, object::Call call, const ByteProgress& progress) override;

  const std::string& etag() const { return info_.etag; }  ///< of the file that is read
  const GgufTokenizer& tokenizer() const { return model_.tokenizer; }

 private:
  GgufReader(object::ReadLocation file, OpenedGguf opened, std::string name);
  Status ReadRange(const TensorRange& wanted, const object::Call& call) const;
  Status Fetch(std::uint64_t offset, MutableByteSpan into, const object::Call& call) const;

  const object::ReadLocation file_;
  const object::ObjectInfo info_;
  const GgufModel model_;
  const std::string name_;
  std::map<std::string, const GgufPart*, std::less<>> parts_;  ///< by name in the manifest
  Manifest manifest_;
};

/// Returns whether the URL is that of a GGUF file.
bool IsGgufUrl(std::string_view url);

}  // namespace millrace::checkpoint
