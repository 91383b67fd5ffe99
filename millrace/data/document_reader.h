// All documents of some sources, front to back: for what needs the text once, such as training a tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/record_template.h"
#include "millrace/data/sources.h"
#include "millrace/object/open.h"

namespace millrace::data {

/// Reads the objects of the sources one after the other, each record once whatever its source's weight. Needs no index
/// and makes none. One thread; the template must outlive it.
class DocumentReader {
 public:
  static Result<DocumentReader> Open(object::Connection& connection, std::span<const Source> sources,
                                     const RecordTemplate& record_template, object::Call call = {});

  /// The next document, or false at the end. Records that cannot be used are skipped and counted.
  Result<bool> Next(std::string& document);

  std::uint64_t documents() const { return documents_; }
  std::uint64_t broken() const { return broken_; }
  std::uint64_t bytes() const { return bytes_; }  ///< of the objects opened so far

 private:
  DocumentReader(ResolvedSources sources, const RecordTemplate& record_template, object::Call call)
      : sources_(std::move(sources)), parser_(record_template), call_(std::move(call)) {}
  /// The next line without its newline, in memory of the reader's; false at the end of the object.
  Result<bool> NextLine(const DataObject& object, std::string_view& line);
  Status Fill(const DataObject& object);

  ResolvedSources sources_;
  RecordParser parser_;
  object::Call call_;
  std::size_t object_ = 0;     ///< being read
  std::uint64_t fetched_ = 0;  ///< bytes of it that have been in the buffer
  Buffer buffer_;
  std::size_t begin_ = 0, end_ = 0;  ///< what is left of the buffer
  bool skipping_ = false;            ///< inside a line that is too long
  std::uint64_t documents_ = 0, broken_ = 0, bytes_ = 0;
};

}  // namespace millrace::data
