// Reads all documents of some sources once, front to back, for example to train a tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/data/records/record_template.h"
#include "millrace/data/sources/sources.h"
#include "millrace/object/connection.h"

namespace millrace::data {

/// Reads the objects of the sources one after the other. Reads each record once, whatever its source's weight. Needs no
/// index and makes none. Two threads read, decode and parse ahead, so some frames of content are in memory. One thread
/// calls it. The template must outlive it.
class DocumentReader {
 public:
  static Result<DocumentReader> Open(object::Connection& connection, std::span<const DataSource> sources,
                                     const RecordTemplate& record_template, object::Call call = {});
  DocumentReader(DocumentReader&&) noexcept;
  DocumentReader& operator=(DocumentReader&&) noexcept;
  ~DocumentReader();

  /// Replaces `document` by the next one. Returns false at the end. Skips and counts broken records. Blocks.
  Result<bool> Next(std::string& document);
  /// Returns up to `count` of the next documents, as many as are ready, valid until the next call. Blocks until there
  /// is one. Returns none at the end. REQUIRES: count > 0.
  Result<std::span<const std::string_view>> NextSome(std::size_t count);
  /// Returns true if Next and NextSome would not block.
  bool ready() const;

  std::uint64_t documents() const;
  std::uint64_t broken() const;
  std::uint64_t bytes() const;      ///< of the objects that were read to their end
  std::uint64_t all_bytes() const;  ///< of all objects
  /// If no document was usable, returns how the records differ from what the template reads, as a sentence; else "".
  /// Blocks on a read.
  Result<std::string> DescribeMismatch() const;

 private:
  class Rep;
  explicit DocumentReader(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
