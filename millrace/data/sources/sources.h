// Finds the objects that hold the records of a job's sources.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/options/data_source.h"
#include "millrace/data/records/data_object.h"
#include "millrace/object/connection.h"
#include "millrace/object/store.h"

namespace millrace::data {

/// The objects of all sources, each once, and which of them belong to each source.
struct ResolvedSources {
  std::vector<DataObject> objects;
  /// Of each source, indexes into `objects`, each once. In the order of the keys, or of the source's list.
  std::vector<std::vector<std::uint32_t>> by_source;
  /// URLs of objects in folders and prefixes that hold no records by their names (MayHoldRecords).
  std::vector<std::string> left_out;
};

/// Finds the objects of each source. DataSource::url is one of these:
/// - an object, a folder, a prefix that ends in '/', or the common part of the names of a .bin and its .idx
/// - a glob of HubPatternMatches (hub_configs.h), unless its only wildcards are brackets and an object has that name
/// - a URL with braces, which stands for several (brace_expansion.h)
/// - '@' and the URL of a list of such, one a line. '#' begins a comment. Lines that are not whole URLs or paths are
///   relative to the list's folder.
/// "#train" at the end, or DataSource::split, chooses a split by ChooseSplit (hub_folder.h). If the folder's README
/// declares configurations, "#config:train" and the like choose by ChooseByConfig (hub_configs.h).
/// A .bin and its .idx are one object of token ids. Empty objects are left out, and keys with a component that starts
/// with a dot. Of folders, prefixes and globs that end in '*', objects that hold no records by their name
/// (MayHoldRecords) are left out, too. Every object has the content that its source's format or its name asks for.
/// `fields` as in ContentFor. Blocks.
/// Errors: kNotFound if a source matches nothing; kUnsupported if a format cannot be read.
Result<ResolvedSources> ResolveSources(object::Connection& connection, std::span<const DataSource> sources,
                                       object::Call call = {}, std::span<const std::string> fields = {});

}  // namespace millrace::data
