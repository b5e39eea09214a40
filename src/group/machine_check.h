// What the machine says against a configuration whose text is right: names that lead to something
// else than what is meant, addresses that no interface has. Looks and changes nothing; a start
// would refuse these, or go on without what they name. For `sandbayd --check`.
#pragma once

#include <string>
#include <vector>

#include "group/configuration.h"

namespace sandbay::group {

// Lines like those of load_configuration(), in the order of the file's kinds of sections.
std::vector<std::string> mistakes_on_this_machine(const Configuration& configuration);

}  // namespace sandbay::group
