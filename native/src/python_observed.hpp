// What was observed of calls, and of arrays, as Python sees it.
#pragma once

#include <nanobind/nanobind.h>

namespace tierup {

void bind_observed(nanobind::module_& module);

}  // namespace tierup
