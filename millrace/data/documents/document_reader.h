// All documents of some sources, front to back: for what needs the text once, such as training a tokenizer.
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

/// Reads the objects of the sources one after the other, each record once whatever its source's weight. Needs no index
/// and makes none. Threads of its own read, decode and parse ahead: some frames of content are in memory at a time. One
/// thread calls it; the template must outlive it.
class DocumentReader {
 public:
  static Result<DocumentReader> Open(object::Connection& connection, std::span<const Source> sources,
                                     const RecordTemplate& record_template, object::Call call = {});
  DocumentReader(DocumentReader&&) noexcept;
  DocumentReader& operator=(DocumentReader&&) noexcept;
  ~DocumentReader();

  /// The next document, or false at the end. Records that cannot be used are skipped and counted.
  Result<bool> Next(std::string& document);
  /// As many of the next documents as are at hand, up to `count` (more than 0); none only at the end. They are views
  /// until the next call.
  Result<std::span<const std::string_view>> NextSome(std::size_t count);
  /// Whether Next and NextSome would not block.
  bool ready() const;

  std::uint64_t documents() const;
  std::uint64_t broken() const;
  std::uint64_t bytes() const;  ///< of the objects that have been read to their end

 private:
  class Rep;
  explicit DocumentReader(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
