// One source of records, as a job names it.
#pragma once

#include <string>

namespace millrace::data {

/// Plain data. ResolveSources() (data/sources/sources.h) finds the objects that it names.
struct DataSource {
  /// An object, a prefix that ends in '/', a glob ("s3://corpus/wiki/*.jsonl"), or '@' and the URL of a list of these.
  /// "#train" at the end chooses a split.
  std::string url;
  /// Passes over this source per epoch. With 0.5 the first epoch reads one half and the second epoch the other half.
  double weight = 1.0;
  std::string format;  ///< of the objects, as FormatOf (formats/format.h) takes it; empty: their names show it
  std::string split;   ///< the same as "#train" at the end of the URL; empty: as the URL says
  bool operator==(const DataSource&) const = default;
};

}  // namespace millrace::data
