"""What the makers print of their accelerators and links, typed in by hand: a digit of a profile is not what was meant.

Dense rates, without sparsity. The sheets: NVIDIA's V100, A100, H100, H200, H20, GH200, HGX B200/B300, GB200/GB300 NVL72,
L40S, RTX A6000, RTX PRO 6000 and the Ada and Blackwell architecture papers; AMD's Instinct MI250 to MI455X (an MI250 is
two dies, each a device); Intel's Gaudi 2 and 3 papers and ALCF's pages of Aurora (a tile is a device); Google Cloud's
pages of the TPUs; AWS's pages of Trainium (a Trainium 1 is two cores, each a device); Huawei's Atlas 900 A2.
"""

import pytest

from costmodel.describe.hardware.hardware import list_profiles, load_accelerator, load_link

# TFLOP/s of fp32, bf16 (V100: fp16), fp8 or int8, fp4; GiB on the label; TB/s of memory; SMs, compute units or cores;
# W; GB/s to the host, one way; ports between devices.
ACCELERATORS = """
a100-pcie-40gb         19.5  312    -      -      40   1.555  108  250   31     -
a100-pcie-80gb         19.5  312    -      -      80   1.935  108  300   31     -
a100-sxm-40gb          19.5  312    -      -      40   1.555  108  400   31     nvlink3
a100-sxm-80gb          19.5  312    -      -      80   2.039  108  400   31     nvlink3
a800-sxm-80gb          19.5  312    -      -      80   2.039  108  400   31     nvlink3-a800
ascend-910b            88    353.9  -      -      64   1.6    24   400   31     hccs-910b
b200-sxm-180gb         75    2250   4500   9000   180  7.7    148  1000  63     nvlink5
b300                   75    2250   4500   13500  270  7.7    148  1100  63     nvlink5
gaudi2                 54    432    865    -      89.4 2.46   2    600   32     gaudi2-scale-up
gaudi3                 229   1677   1677   -      119  3.67   8    900   63     gaudi3-scale-up
gb200                  80    2500   5000   10000  186  8      148  1200  450    nvlink5-nvl72
gb300                  80    2500   5000   15000  279  8      148  1400  450    nvlink5-nvl72
gh200                  67    989.4  1978.9 -      96   4      132  680   450    nvlink4-mesh
h100-hbm2e-96gb-500w   67    989.4  1978.9 -      96   2.4    132  500   63     nvlink4
h100-pcie-80gb         51.2  756.5  1513   -      80   2      114  350   63     -
h100-sxm-80gb          67    989.4  1978.9 -      80   3.35   132  700   63     nvlink4
h20-sxm-96gb           44    148    296    -      96   4      78   400   63     nvlink4
h200-sxm-141gb         67    989.4  1978.9 -      141  4.8    132  700   63     nvlink4
h800-sxm-80gb          67    989.4  1978.9 -      80   3.35   132  700   63     nvlink4-h800
l40s                   91.6  366.4  732.9  -      48   0.864  142  350   31     -
mi250-gcd              45.3  181    -      -      64   1.64   104  250   31     xgmi-mi250x
mi250x                 47.9  191.5  -      -      64   1.64   110  250   36     xgmi-mi250x
mi300x                 163.4 1307   2615   -      192  5.3    304  750   63     xgmi-mi300x
mi325x                 163.4 1307   2615   -      256  6      304  1000  63     xgmi-mi300x
mi350x                 144.2 2307   4614   9227   288  8      256  1000  63     xgmi-mi350
mi355x                 157.3 2500   5000   10100  288  8      256  1400  63     xgmi-mi350
mi455x                 315   5033   20133  40265  432  23.3   256  2500  121    ualink-helios
pvc-1550               26    416    -      -      64   1.638  56   300   27     xelink
rtx-4090               82.6  165.2  330.3  -      24   1.008  128  450   31     -
rtx-5090               104.8 209.5  419    1676   32   1.792  170  575   63     -
rtx-a6000              38.7  154.8  -      -      48   0.768  84   300   31     -
rtx-pro-6000           126   503.8  1007.6 2015   96   1.792  188  600   63     -
tpu-v4                 68.75 275    275    -      32   1.2    8    192   15     ici-v4
tpu-v5e                49.25 197    394    -      16   0.819  4    220   15     ici-v5e
tpu-v5p                114.7 459    918    -      95   2.77   8    540   15     ici-v5p
tpu-v6e                229.5 918    1836   -      32   1.638  4    300   32     ici-v6e
tpu-v7x                576.7 2307   4614   -      192  7.38   8    1000  32     ici-v7x
trn1-nc                23.75 95     95     -      16   0.44   1    193   16     neuronlink-v2
trn2                   181   667    1299   -      96   2.9    8    500   32     neuronlink-v3
v100-sxm2-16gb         15.7  125    -      -      16   0.9    80   300   15.75  nvlink2
v100-sxm2-32gb         15.7  125    -      -      32   0.9    80   300   15.75  nvlink2
v100-sxm3-32gb         15.7  125    -      -      32   0.9    80   350   15.75  nvlink2
vr200                  130   4000   17500  35000  288  22     224  1800  450    nvlink6-nvl144
"""

# What it can send in one direction, all of a device's ports together. [GB/s]
LINKS = """
dcn-tpu 12.5
efa-v1 6.25
efa-v2 50
efa-v3 50
eth-helios 298
gaudi2-scale-up 262.5
gaudi3-scale-up 525
gpudirect-tcpx 12.5
gpudirect-tcpxo 25
hccs-910b 196
ib-cx9 200
ib-edr 12.5
ib-hdr 25
ib-ndr 50
ib-xdr 100
ici-v4 300
ici-v5e 200
ici-v5p 600
ici-v6e 400
ici-v7x 600
neuronlink-v2 192
neuronlink-v3 512
nvlink-c2c 450
nvlink2 150
nvlink3 300
nvlink3-a800 200
nvlink3-mesh 300
nvlink4 450
nvlink4-h800 200
nvlink4-mesh 450
nvlink5 900
nvlink5-nvl72 900
nvlink6-nvl144 1800
omnipath-100 12.5
pcie3 15.75
pcie4 31
pcie4-no-peer 31
pcie5 63
pcie5-no-peer 63
roce-100 12.5
roce-200 25
roce-400 50
roce-gaudi2 37.5
roce-gaudi3 75
slingshot-11 25
slingshot-11-xpu 16.6625
tcp-100gbe 1.5625
ualink-helios 1800
xelink 75
xgmi-mi250x 175
xgmi-mi300x 448
xgmi-mi350 535.5
"""


def rows(table):
    """Return the words of each line."""
    return [line.split() for line in table.strip().splitlines()]


@pytest.mark.parametrize("row", rows(ACCELERATORS), ids=lambda row: row[0])
def test_an_accelerator_is_as_on_its_sheet(row):
    name, fp32, wide, narrow, fp4, label, rate, sms, watts, host, port = row
    chip = load_accelerator(name)
    peaks = {dtype: rate / 1e12 for dtype, rate in chip.peak_flops_per_s.items()}
    assert peaks["fp32"] == pytest.approx(float(fp32), rel=0.003)
    assert peaks.get("bf16", peaks.get("fp16")) == pytest.approx(float(wide), rel=1e-6)
    narrowest = peaks.get("int8", peaks.get("fp8"))
    assert narrowest == (None if narrow == "-" else pytest.approx(float(narrow), rel=1e-6))
    assert peaks.get("fp4") == (None if fp4 == "-" else pytest.approx(float(fp4), rel=1e-6))
    assert chip.memory_vendor_bytes / 2**30 == pytest.approx(float(label), rel=0.003)
    assert chip.memory_bandwidth_bytes_per_s / 1e12 == pytest.approx(float(rate), rel=1e-6)
    assert (chip.num_sms, chip.tdp_w) == (int(sms), float(watts))
    assert chip.host_link_bytes_per_s / 1e9 == pytest.approx(float(host), rel=1e-6)
    assert chip.scale_up_link == port.replace("-", "", port == "-")


def test_the_peaks_of_an_accelerator_follow_one_another():
    """A narrower type is never slower; a program gets all of the memory on the label but what the driver keeps."""
    for name in list_profiles("accelerator"):
        chip = load_accelerator(name)
        peaks = chip.peak_flops_per_s
        wide = peaks.get("bf16", peaks.get("fp16"))
        assert peaks["fp32"] <= peaks.get("tf32", peaks["fp32"]) <= wide <= peaks.get("fp8", wide), name
        assert wide <= peaks.get("int8", wide), name
        # A Gaudi 3 multiplies fp16 at the rate of TF32.
        assert peaks.get("fp16", wide) == (peaks["tf32"] if name == "gaudi3" else wide), name
        assert 0.92 * chip.memory_vendor_bytes <= chip.memory_bytes <= chip.memory_vendor_bytes, name


def test_a_link_sends_what_its_ports_do():
    for name, rate in rows(LINKS):
        assert load_link(name).bandwidth_bytes_per_s / 1e9 == pytest.approx(float(rate), rel=1e-6), name
