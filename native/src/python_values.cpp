#include "python_values.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "numpy_api.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

constexpr int kBuiltinTypes = 32;                           // NumPy's own type numbers end below
constexpr int kUserTypes = 64;                              // ml_dtypes registers some twenty
std::array<PyArray_Descr*, kDtypes> descriptions{};         // by code
std::array<int32_t, kBuiltinTypes> codes_of_builtin = [] {  // by type number
  std::array<int32_t, kBuiltinTypes> none;
  none.fill(-1);
  return none;
}();
std::array<int32_t, kUserTypes> codes_of_user = [] {  // by type number past NPY_USERDEF
  std::array<int32_t, kUserTypes> none;
  none.fill(-1);
  return none;
}();

PyArrayObject* as_array(PyObject* object) { return reinterpret_cast<PyArrayObject*>(object); }

nb::object checked(PyObject* stolen) {
  if (stolen == nullptr) throw nb::python_error();
  return nb::steal(stolen);
}

void* renew(void*, void* memory, size_t bytes) {
  auto* held = static_cast<std::byte*>(memory);
  try {
    std::byte* larger = allocate(static_cast<int64_t>(bytes));
    if (held != nullptr) std::memcpy(larger, held, std::min(bytes, static_cast<size_t>(allocated_bytes(held))));
    deallocate(held);
    return larger;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void* take(void*, size_t bytes) { return renew(nullptr, nullptr, bytes); }

void* take_zeros(void*, size_t count, size_t bytes_each) {
  const size_t bytes = count * bytes_each;  // NumPy has checked the product
  void* memory = take(nullptr, bytes);
  return memory == nullptr ? nullptr : std::memset(memory, 0, bytes);
}

void give_back(void*, void* memory, size_t) { deallocate(static_cast<std::byte*>(memory)); }

// How NumPy gives back memory of ours that became an array's own. Never freed: arrays outlive everything.
PyObject* memory_handler() {
  static PyDataMem_Handler handler{"tierup", 1, {nullptr, take, take_zeros, renew, give_back}};
  static PyObject* const capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  if (capsule == nullptr) throw nb::python_error();
  return capsule;
}

int32_t* code_place(int type_number) {
  if (type_number >= 0 && type_number < kBuiltinTypes) return &codes_of_builtin[static_cast<size_t>(type_number)];
  const int user = type_number - NPY_USERDEF;
  return user >= 0 && user < kUserTypes ? &codes_of_user[static_cast<size_t>(user)] : nullptr;
}

// A new reference, as NumPy's constructors take one over.
PyArray_Descr* description(int32_t dtype) {
  PyArray_Descr* found = descriptions[static_cast<size_t>(dtype)];
  if (found == nullptr) {
    PyErr_Format(PyExc_RuntimeError, "no NumPy type was set for type code %d", dtype);
    throw nb::python_error();
  }
  Py_INCREF(found);
  return found;
}

// An array over `data`, which the array neither owns nor keeps alive yet.
nb::object array_over(const Tensor& tensor, int flags) {
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  auto* shape = const_cast<npy_intp*>(reinterpret_cast<const npy_intp*>(tensor.shape().data()));
  auto* strides = const_cast<npy_intp*>(reinterpret_cast<const npy_intp*>(tensor.strides().data()));
  return checked(PyArray_NewFromDescr(&PyArray_Type, description(tensor.dtype), tensor.rank, shape, strides,
                                      tensor.data, flags, nullptr));
}

// A copy in memory of NumPy's own.
nb::object array_copy(const Tensor& tensor) {
  auto* shape = const_cast<npy_intp*>(reinterpret_cast<const npy_intp*>(tensor.shape().data()));
  nb::object array = checked(
      PyArray_NewFromDescr(&PyArray_Type, description(tensor.dtype), tensor.rank, shape, nullptr, nullptr, 0, nullptr));
  const npy_intp* strides = PyArray_STRIDES(as_array(array.ptr()));
  copy_elements(static_cast<std::byte*>(PyArray_DATA(as_array(array.ptr()))),
                {reinterpret_cast<const int64_t*>(strides), static_cast<size_t>(tensor.rank)}, tensor);
  return array;
}

constexpr const char* kBlockName = "tierup.block";

void release_block(PyObject* capsule) { static_cast<Block*>(PyCapsule_GetPointer(capsule, kBlockName))->release(); }

// The Python object that keeps a tensor's memory alive.
nb::object keeper(const Tensor& tensor) {
  if (tensor.storage->kind == Kind::host) return nb::borrow(static_cast<PythonObject&>(*tensor.storage).object);
  Ref<Block> block(static_cast<Block*>(tensor.storage.get()));
  nb::object capsule = checked(PyCapsule_New(block.get(), kBlockName, release_block));
  block.leak();
  return capsule;
}

// A read-only array over a tensor's memory: call-outs do not write their arguments.
nb::object array_view(const Tensor& tensor) {
  nb::object array = array_over(tensor, 0);
  PyArray_CLEARFLAGS(as_array(array.ptr()), NPY_ARRAY_WRITEABLE);
  if (PyArray_SetBaseObject(as_array(array.ptr()), keeper(tensor).release().ptr()) < 0) throw nb::python_error();
  return array;
}

nb::object copy_array(PyObject* array) {
  nb::object base = checked(PyArray_EnsureArray(nb::borrow(array).release().ptr()));
  return checked(PyArray_NewCopy(as_array(base.ptr()), NPY_CORDER));
}

// An array may leave as it is if nobody else can reach its memory: it owns it, and ours is the only reference.
bool is_exclusive(PyObject* object) {
  if (!PyArray_CheckExact(object) || Py_REFCNT(object) != 1) return false;
  PyArrayObject* array = as_array(object);
  return PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA | NPY_ARRAY_WRITEABLE) && PyArray_BASE(array) == nullptr;
}

// A container as an output: rebuilt, with its arrays copied, since an input or a constant may share any part of it.
nb::object detach(PyObject* object) {
  if (PyArray_Check(object)) return copy_array(object);
  if (!PyList_Check(object) && !PyTuple_Check(object) && !PyDict_Check(object)) return nb::borrow(object);
  if (Py_EnterRecursiveCall(" while copying an output") != 0) throw nb::python_error();
  struct Leave {
    ~Leave() { Py_LeaveRecursiveCall(); }
  } leave;
  if (PyDict_Check(object)) {
    nb::dict copy;
    for (auto [key, item] : nb::borrow<nb::dict>(object)) copy[key] = detach(item.ptr());
    return copy;
  }
  nb::list copy;
  for (nb::handle item : nb::borrow(object)) copy.append(detach(item.ptr()));
  return PyTuple_Check(object) ? checked(PyList_AsTuple(copy.ptr())) : nb::object(copy);
}

nb::object host_output(Ref<PythonObject> holder) {
  PyObject* object = holder->object;
  if (holder->unique() && is_exclusive(object)) return nb::borrow(object);
  return detach(object);
}

// A tensor over native memory. The block itself becomes the array's own, if nothing else is in it.
nb::object native_output(Tensor& tensor, bool sole) {
  auto& block = static_cast<Block&>(*tensor.storage);
  const bool whole = sole && block.unique() && tensor.data == block.data && is_dense(tensor);
  if (!whole) return array_copy(tensor);
  nb::object array = array_over(tensor, NPY_ARRAY_WRITEABLE);
  // NumPy lets no array over given memory have a handler, but asks the one that it has.
  reinterpret_cast<PyArrayObject_fields*>(array.ptr())->mem_handler = Py_NewRef(memory_handler());
  PyArray_ENABLEFLAGS(as_array(array.ptr()), NPY_ARRAY_OWNDATA);
  block.data = nullptr;
  return array;
}

nb::object tensor_output(Ref<Tensor> tensor) {
  const bool sole = tensor->unique();
  if (tensor->storage->kind == Kind::block) {
    if (sole) tensor->host.reset();  // a wrapper made for a call-out; if the call-out kept it, it keeps the block too
    return native_output(*tensor, sole);
  }
  if (!tensor->host) {  // a view into an array
    return tensor->dtype == kString ? copy_array(array_view(*tensor).ptr()) : array_copy(*tensor);
  }
  Ref<PythonObject> holder(static_cast<PythonObject*>(tensor->host.get()));
  tensor.reset();
  return host_output(std::move(holder));
}

nb::object list_output(Ref<List> list) {
  nb::list result;
  const bool sole = list->unique();
  for (Value& item : list->items) result.append(as_output(sole ? std::move(item) : item));
  return result;
}

nb::object list_argument(List& list, Gil& gil) {
  nb::list result;
  for (Value& item : list.items) result.append(as_argument(*item, gil));
  return result;
}

nb::object tensor_argument(Tensor& tensor, Gil& gil) {
  if (tensor.host) return nb::borrow(static_cast<PythonObject&>(*tensor.host).object);
  if (tensor.arena != nullptr) return array_copy(tensor);
  nb::object array = array_view(tensor);
  tensor.host = Ref<PythonObject>(new PythonObject(nb::object(array).release().ptr(), &gil));
  return array;
}

}  // namespace

void set_dtypes(const nb::dict& dtypes) {
  for (auto [key, value] : dtypes) {
    const auto code = nb::cast<int64_t>(key);
    if (element_bytes(code) == 0 || !PyArray_DescrCheck(value.ptr())) {
      throw nb::value_error("set_dtypes takes a dict from type codes to numpy.dtype objects");
    }
    auto* given = reinterpret_cast<PyArray_Descr*>(value.ptr());
    int32_t* place = code_place(given->type_num);
    if (place == nullptr || PyDataType_ELSIZE(given) != element_bytes(code)) {
      throw nb::value_error("set_dtypes: a NumPy type does not have the element size of its code");
    }
    *place = static_cast<int32_t>(code);
    // On the platforms where long and long long are the same, NumPy still has a number for each.
    if (given->type_num == NPY_LONG && sizeof(long) == sizeof(long long)) *code_place(NPY_LONGLONG) = *place;
    if (given->type_num == NPY_ULONG && sizeof(long) == sizeof(long long)) *code_place(NPY_ULONGLONG) = *place;
    Py_INCREF(given);
    Py_XSETREF(descriptions[static_cast<size_t>(code)], given);
  }
}

int32_t dtype_code(PyObject* array) {
  const int32_t* place = code_place(PyArray_TYPE(as_array(array)));
  return place != nullptr && PyArray_ISNOTSWAPPED(as_array(array)) ? *place : -1;
}

Ref<Tensor> tensor_over(nb::object object, int32_t dtype, Gil* gil) {
  PyArrayObject* array = as_array(object.ptr());
  const auto rank = static_cast<size_t>(PyArray_NDIM(array));
  Ref<Tensor> tensor = Tensor::make(dtype, {reinterpret_cast<const int64_t*>(PyArray_DIMS(array)), rank});
  for (size_t i = 0; i < rank; ++i) tensor->strides()[i] = PyArray_STRIDES(array)[i];
  tensor->data = static_cast<std::byte*>(PyArray_DATA(array));
  Ref<PythonObject> holder(new PythonObject(object.release().ptr(), gil));
  tensor->host = holder;
  tensor->storage = std::move(holder);
  return tensor;
}

Value from_python(nb::object object, Gil* gil) {
  if (PyArray_IsScalar(object.ptr(), Generic)) object = checked(PyArray_FromScalar(object.ptr(), nullptr));
  if (PyArray_Check(object.ptr())) {
    const int32_t dtype = dtype_code(object.ptr());
    if (dtype >= 0) return tensor_over(std::move(object), dtype, gil);
  }
  return Ref<PythonObject>(new PythonObject(object.release().ptr(), gil));
}

nb::object as_argument(Object& value, Gil& gil) {
  switch (value.kind) {
    case Kind::tensor: return tensor_argument(static_cast<Tensor&>(value), gil);
    case Kind::list: return list_argument(static_cast<List&>(value), gil);
    default: return nb::borrow(static_cast<PythonObject&>(value).object);
  }
}

nb::object as_output(Value value) {
  switch (value->kind) {
    case Kind::tensor: return tensor_output(Ref<Tensor>::adopt(static_cast<Tensor*>(value.leak())));
    case Kind::list: return list_output(Ref<List>::adopt(static_cast<List*>(value.leak())));
    default: return host_output(Ref<PythonObject>::adopt(static_cast<PythonObject*>(value.leak())));
  }
}

}  // namespace tierup
