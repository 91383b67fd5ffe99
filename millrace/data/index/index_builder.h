// Makes the record indexes of a set of objects, or finds them where they were left.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/index/record_index.h"
#include "millrace/data/sources/sources.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

/// As max_broken: do not mind.
inline constexpr std::uint64_t kAnyNumber = UINT64_MAX;

struct IndexOptions {
  const DocumentForm* form = nullptr;               ///< must outlive the call
  const tokenizer::Tokenizer* tokenizer = nullptr;  ///< null: tokens are not counted
  std::string cache_url;                            ///< empty: beside the data
  bool hashes = false;                              ///< of documents, see RecordExtent::hash
  /// Records of all objects that may be unusable; nothing: 100, or a thousandth of all if that is more.
  std::optional<std::uint64_t> max_broken;
  int threads = 2;  ///< that tokenize; as many more wait for the store
};

/// One index per object, in their order. Objects without a valid index are read in parts of 4 MiB or a frame, many at
/// a time and many parts of one object at a time; memory is about four parts a thread (a part is 20 MiB where a record
/// is huge) beside the indexes. Each new index is stored as soon as it is complete, so an interrupted build continues
/// where it stopped; one that cannot be stored is logged and used all the same. Fails with kStale when an object
/// changes meanwhile. Blocks.
Result<std::vector<RecordIndex>> LoadOrBuildIndexes(object::Connection& connection, std::span<const DataObject> objects,
                                                    const IndexOptions& options, const Logger& log,
                                                    object::Call call = {});

/// Where the index of `object` lies; see docs/formats/index.md.
Result<object::Location> IndexLocation(object::Connection& connection, const DataObject& object,
                                       const IndexOptions& options);

}  // namespace millrace::data
