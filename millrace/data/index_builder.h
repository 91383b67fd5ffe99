// Makes the record indexes of a set of objects, or loads those that are stored.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/records/data_object.h"
#include "millrace/data/records/record_index.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

/// The value of max_broken that allows any number.
inline constexpr std::uint64_t kAnyNumber = UINT64_MAX;

struct IndexOptions {
  const DocumentForm* form = nullptr;               ///< must outlive the call
  const tokenizer::Tokenizer* tokenizer = nullptr;  ///< null: tokens are not counted
  std::string cache_url;                            ///< empty: beside the data
  bool hashes = false;                              ///< store RecordExtent::hash
  /// Unusable records of all objects together before it is an error. Nothing: 100, or a thousandth of all if that is
  /// more. Those without a label do not count, unless no usable records are left.
  std::optional<std::uint64_t> max_broken;
  int threads = 2;  ///< threads that tokenize; as many more wait for the store
  /// Called on any thread with the bytes of the objects without an index that have been read so far, and with all of
  /// them. May be empty.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = nullptr;
};

/// Returns one index per object, in their order. Reads objects without a valid index in parts of 4 MiB or a frame.
/// Several objects, and several parts of an object, are read at a time. Beside the indexes this takes the memory of
/// about four parts a thread; with huge records, a part has up to 20 MiB. Stores each new index as soon as it is
/// complete, so an interrupted build continues where it stopped. If an index cannot be stored, logs that and uses it.
/// Blocks. Errors: kStale if an object changes meanwhile.
Result<std::vector<RecordIndex>> LoadOrBuildIndexes(object::Connection& connection, std::span<const DataObject> objects,
                                                    const IndexOptions& options, const Logger& log,
                                                    object::Call call = {});

/// Returns where the first `count` unusable records of an object are: "line 17 (3 fields instead of 2)" or "at byte
/// 90". REQUIRES: count <= index.broken().size(). May read the object from its start. Blocks. Errors: those of
/// Content::NameRecords.
Result<std::vector<std::string>> NameBroken(const DataObject& object, const RecordIndex& index, std::size_t count,
                                            object::Call call);

/// Returns where the index of `object` is stored (docs/formats/index.md).
Result<object::Location> IndexLocation(object::Connection& connection, const DataObject& object,
                                       const IndexOptions& options);

}  // namespace millrace::data
