"""Arrays that come with Sandbay, as initiators meet them: names, pages, parameters, data."""
import os
import re

import harness
import host
import wire

FOLDER = os.path.join(harness.TOP, 'conf', 'arrays')
FIRST_PORT, PORTS = 3260, 16
MIB = 1 << 20
MAKING_SECONDS = 240  # The largest makes 256 drives and 64 sets.
EQUALLOGIC = 'iqn.2001-05.com.equallogic:'
COMPELLENT = 'iqn.2002-03.com.compellent:5000d310000c1001'
GIGASTOR = 'iqn.2026-11.org.sandbay:hn0000000052300018.'
DS3500 = 'iqn.1992-01.com.lsi:2365.60080e500017a8d0000000004d2f8b11'
HEADS = ('iqn.1994-04.jp.co.hitachi:rsd.usp.t.071c9.1a',
         'iqn.1994-04.jp.co.hitachi:rsd.usp.t.071c9.2a')


def start(t, name, change=lambda text: text):
    """A daemon of the array as it is but for ports and state; `ports` is by those of the file."""
    with open(os.path.join(FOLDER, f'{name}.toml'), encoding='utf-8') as stream:
        text = change(stream.read())
    first = harness.PORTS.take_row(PORTS)
    ports = {FIRST_PORT + number: first + number for number in range(PORTS)}
    ports[8260] = harness.PORTS.take()
    path = t.path('array.toml')
    daemon = harness.Daemon(t, None, config=path, start=False)
    text = re.sub(r'(?m)^(listen = "127\.0\.0\.1:\{?)(\d+)',
                  lambda match: match[1] + str(ports[int(match[2])]), text)
    text = re.sub(r'(?m)^state = .*$', f'state = "{daemon.state}"', text)
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text)
    daemon.ports = ports
    daemon.portal = f'127.0.0.1:{ports[3260]}'
    daemon.portals = [daemon.portal]
    daemon.management = f'127.0.0.1:{ports[8260]}'
    daemon.arguments = ['--config', path]
    daemon.start(MAKING_SECONDS)
    return daemon


def discovered(t, portal):
    """{target: its first portal} as libiscsi is told."""
    output = t.run('iscsi-ls', f'iscsi://{portal}').stdout
    return dict(re.findall(r'Target:(\S+) Portal:([^,\s]+)', output))


def require_inquiry(t, url, vendor, product, revision):
    output = t.run('iscsi-inq', url).stdout
    for key, value in (('Vendor', vendor), ('Product', product), ('Revision', revision)):
        t.check(re.search(rf'(?m)^{key}:{re.escape(value)} *$', output),
                f'{url}: {key} is not {value}:\n{output}')


def require_hardware(t, daemon, spares, **sets):
    """So many spares, and sets that are written as raid10=[(sets, drives in each, groups)]."""
    uses = [drive['use'] for drive in daemon.sandbay_json('drive', 'list')['drives']]
    wanted = {level: sorted((drives, groups) for count, drives, groups in rows
                            for _ in range(count)) for level, rows in sets.items()}
    seen = {}
    for one in daemon.sandbay_json('raid', 'list')['sets']:
        seen.setdefault(one['level'], []).append((one['drives'], one['groups']))
    t.check({level: sorted(rows) for level, rows in seen.items()} == wanted, f'{seen}')
    members = sum(drives for rows in wanted.values() for drives, _ in rows)
    t.check(len(uses) == members + spares and uses.count('spare') == spares, f'{uses}')


def require_data(t, url, size=None):
    """What is written at both ends of the unit is read back in another session."""
    places = ['4096'] + ([str(size - MIB)] if size else [])
    for verb in ('write', 'read'):
        commands = [word for number, place in enumerate(places, 1)
                    for word in ('-c', f'{verb} -P {number} {place} 512k')]
        output = t.run('qemu-io', '-f', 'raw', *commands, '-c', 'flush', url).stdout
        t.check('verification failed' not in output, output)


def identity_of(initiator, lun=0):
    """(serial, NAA) as digits."""
    page = initiator.good(host.inquiry(255, 0x80), 255, lun=lun)
    serial = page[4:].decode()
    page = initiator.good(host.inquiry(1024, 0x83), 1024, lun=lun)
    naa = [value for code_set, association, kind, value in host.designators(page)
           if (code_set, association, kind) == (1, 0, 3)]
    return serial, naa[0].hex()


def equallogic_name(naa, volume):
    """Both halves of the identifier are numbers with the lowest byte first (little-endian)."""
    data = bytes.fromhex(naa)
    low, high = (int.from_bytes(data[at:at + 8], 'little') for at in (0, 8))
    text = f'{low:016x}'
    return f'{EQUALLOGIC}0-{text[9:15]}-{text[:9]}-{high:016x}-{volume}'


def equallogic(t, change=lambda text: text, **sets):
    t.need('iscsi-ls', 'iscsi-inq', 'qemu-io')
    daemon = start(t, 'equallogic-ps3800xv', change)
    first = equallogic_name('6090a0e8a0ab12cd34ef5601020304f5', 'volume1')
    t.check(first.startswith(f'{EQUALLOGIC}0-8a0906-'), first)
    seen = discovered(t, daemon.portal)
    t.check(seen == {first: daemon.portal}, f'seen {seen}')
    # The group's address sends a login on to a port of the member (temporarily, status 0101).
    peer = wire.Peer(daemon.address())
    status = peer.login(first)
    t.check(status == 0x0101, f'status {status:#06x}')
    ports = [f'127.0.0.1:{daemon.ports[port]}' for port in (3261, 3262, 3263)]
    t.check(peer.answers.get('TargetAddress') in ports, f'{peer.answers}, not one of {ports}')
    initiator = host.Host(t, daemon, target=first, portal=('127.0.0.1', daemon.ports[3261]))
    initiator.attentions()
    serial, naa = identity_of(initiator)
    t.check(naa == serial == '6090a0e8a0ab12cd34ef5601020304f5', f'{serial} {naa}')
    url = f'iscsi://{daemon.portal}/{first}/0'
    require_inquiry(t, url, 'EQLOGIC', '100E-00', '3.0')
    require_data(t, url, 100 << 30)
    # Of one that is made later the same holds.
    daemon.sandbay('volume', 'create', 'db1', '--size', '10GiB', '--thin', '--initiator', '*')
    volume = daemon.sandbay_json('volume', 'show', 'db1')
    naa = volume['naa'].removeprefix('naa.')
    t.check(re.fullmatch(r'6090a0.8.{24}', naa), naa)
    t.check(volume['target'] == equallogic_name(naa, 'db1'), f'{volume["target"]} {naa}')
    t.check(volume['target'] in discovered(t, daemon.portal), 'db1 is not discovered')
    require_hardware(t, daemon, 10, **sets)
    daemon.sandbay('member', 'add', 'array2')
    t.check(daemon.terminate() == 0, 'it did not end well')
    t.say(f'{first}')


def test_equallogic_names_targets_by_their_identifiers(t):
    equallogic(t, raid10=[(5, 14, 7)])


def test_equallogic_raid_50(t):
    equallogic(t, lambda text: text.replace(
        'level = "raid10"', 'level = "raid50"\ngroups = 2\njournal = "nvram"'),
               raid50=[(5, 14, 2)])


def test_compellent_has_one_target_for_all_volumes(t):
    t.need('iscsi-ls', 'iscsi-inq', 'qemu-io')
    daemon = start(t, 'compellent-c10')
    t.check(set(discovered(t, daemon.portal)) == {COMPELLENT}, 'other targets are discovered')
    daemon.sandbay('volume', 'create', 'mail1', '--size', '500GiB', '--thin')
    initiator = host.Host(t, daemon, target=COMPELLENT)
    luns = host.luns_of(initiator.good(host.report_luns(), 4096))
    t.check(luns == [0, 1], f'LUNs {luns}')
    found = set()
    for lun in luns:
        initiator.attentions(lun)
        serial, naa = identity_of(initiator, lun)
        t.check(naa.startswith('6000d310000c1000'), naa)
        t.check(serial == f'00000c10-{naa[24:]}', serial)
        found.add(naa)
        require_inquiry(t, f'iscsi://{daemon.portal}/{COMPELLENT}/{lun}', 'COMPELNT',
                        'Compellent Vol', '0400')
    t.check(len(found) == 2, f'{found}')
    require_data(t, f'iscsi://{daemon.portal}/{COMPELLENT}/1', 500 << 30)
    pool = daemon.sandbay_json('pool', 'list')['pools'][0]
    t.check(pool['page'] == 2 * MIB, f'{pool}')
    require_hardware(t, daemon, 0, raid10=[(2, 62, 31)])
    t.check(daemon.terminate() == 0, 'it did not end well')


def test_volumes_keep_their_identifiers_without_the_section(t):
    section = ('[identity]\nvendor = "COMPELNT"\nproduct = "Compellent Vol"\nrevision = "0400"\n'
               'naa = "6000d310000c1000****************"\nserial = "00000c10-{naa:24+8}"\n')
    daemon = t.daemon([{'name': 'v', 'size': '16MiB'}], extra=section)
    daemon.sandbay('volume', 'create', 'w', '--size', '16MiB', '--initiator', '*')

    def seen():
        """{volume: (vendor, serial, NAA)} as INQUIRY has them."""
        result = {}
        for name in 'vw':
            initiator = host.Host(t, daemon, name)
            initiator.attentions()
            vendor = initiator.good(host.inquiry(96), 96)[8:16].decode().rstrip()
            result[name] = (vendor, *identity_of(initiator))
            initiator.peer.close()
        return result

    first = seen()
    for vendor, serial, naa in first.values():
        t.check(vendor == 'COMPELNT' and naa.startswith('6000d310000c1000') and
                serial == f'00000c10-{naa[24:]}', f'{first}')
    t.check(daemon.terminate() == 0, 'it did not end well')
    path = daemon.arguments[1]
    with open(path, encoding='utf-8') as stream:
        text = stream.read()
    t.check(section in text, text)
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text.replace(section, ''))
    daemon.start()
    then = seen()
    wanted = {name: ('SANDBAY', *rest) for name, (_, *rest) in first.items()}
    t.check(then == wanted, f'{first} became {then}')
    t.check(daemon.terminate() == 0, 'it did not end well')


# What the paper's figure 23 prints, for what an initiator offers that would rather have more.
OFFERS = {'HeaderDigest': 'None,CRC32C', 'DataDigest': 'CRC32C,None', 'MaxConnections': '8',
          'InitialR2T': 'No', 'ImmediateData': 'Yes', 'MaxRecvDataSegmentLength': '65536',
          'MaxBurstLength': '16776192', 'FirstBurstLength': '262144', 'DefaultTime2Wait': '0',
          'DefaultTime2Retain': '20', 'MaxOutstandingR2T': '16', 'DataPDUInOrder': 'No',
          'DataSequenceInOrder': 'No', 'ErrorRecoveryLevel': '2', 'OFMarker': 'Yes',
          'IFMarker': 'No', 'OFMarkInt': '2048', 'IFMarkInt': '2048'}
PARAMETERS = {'HeaderDigest': 'None', 'DataDigest': 'None', 'MaxConnections': '2',
              'InitialR2T': 'Yes', 'ImmediateData': 'No', 'MaxRecvDataSegmentLength': '8192',
              'MaxBurstLength': '262144', 'FirstBurstLength': 'Irrelevant',
              'DefaultTime2Wait': '2', 'DefaultTime2Retain': '0', 'MaxOutstandingR2T': '1',
              'DataPDUInOrder': 'Yes', 'DataSequenceInOrder': 'Yes', 'ErrorRecoveryLevel': '0',
              'OFMarker': 'No', 'IFMarker': 'No', 'OFMarkInt': 'Irrelevant',
              'IFMarkInt': 'Irrelevant'}


def require_bursts(t, peer, byte_count):
    """A write goes in bursts of 256 KiB, the next of which is asked for when one is there."""
    cdb, tag, data = host.write_10(0, byte_count // 512), 7, os.urandom(byte_count)
    while True:
        peer.send(wire.scsi_command(host.TEST_UNIT_READY, 1, peer.exp_cmd_sn))
        header, _ = peer.receive()
        peer.exp_cmd_sn += 1
        if header[3] == host.GOOD:
            break
    peer.send(wire.scsi_command(cdb, tag, peer.exp_cmd_sn, byte_count, write=True))
    peer.exp_cmd_sn += 1
    for offset in range(0, byte_count, 262144):
        header, _ = peer.receive()
        t.check(header[0] & 0x3f == wire.READY_TO_TRANSFER, f'no R2T but {header.hex()}')
        transfer_tag, at, length = (int.from_bytes(header[i:i + 4], 'big') for i in (20, 40, 44))
        t.check((at, length) == (offset, 262144), f'an R2T for {length} bytes at {at}')
        peer.socket.settimeout(0.5)
        try:
            early = peer.receive()[0]
            t.check(False, f'before the burst is there comes {early.hex()}')
        except TimeoutError:
            peer.socket.settimeout(20)
        for number in range(32):
            begin = offset + number * 8192
            peer.send(wire.data_out(tag, transfer_tag, number, begin, data[begin:begin + 8192],
                                    number == 31))
    header, _ = peer.receive()
    t.check(header[0] & 0x3f == wire.SCSI_RESPONSE and header[3] == host.GOOD, header.hex())


def test_gigastor_negotiates_what_its_paper_prints(t):
    t.need('iscsi-ls', 'iscsi-inq', 'qemu-io')
    # Ten times as fast, for the drives take what is written here at their own pace.
    daemon = start(t, 'istor-gigastor', lambda text: text.replace(
        '[group]\n', '[group]\ntime_scale = 0.1\n'))
    require_hardware(t, daemon, 0, raid5=[(4, 4, 1)])
    names = {f'{GIGASTOR}volume{number}' for number in range(1, 5)}
    t.check(set(discovered(t, daemon.portal)) == names, f'{discovered(t, daemon.portal)}')
    peer = wire.Peer(daemon.address())
    status = peer.login(f'{GIGASTOR}volume1', **OFFERS)
    t.check(status == 0, f'status {status:#06x}')
    wrong = {key: peer.answers.get(key) for key, value in PARAMETERS.items()
             if peer.answers.get(key) != value}
    t.check(not wrong, f'answered {wrong}')
    require_bursts(t, peer, MIB)
    peer.close()
    # Of a volume that is made later, too; and of an initiator that offers next to nothing.
    daemon.sandbay('volume', 'create', 'v5', '--size', '1GiB', '--raid', 'set1', '--initiator', '*')
    peer = wire.Peer((daemon.address()[0], daemon.ports[3267]))
    t.check(peer.login(f'{GIGASTOR}v5', MaxConnections='1') == 0, 'no login to v5')
    t.check(peer.answers['MaxRecvDataSegmentLength'] == '8192', f'{peer.answers}')
    t.check(peer.answers.get('ImmediateData') == 'No', f'{peer.answers}')
    peer.close()
    url = f'iscsi://{daemon.portal}/{GIGASTOR}volume4/0'
    require_inquiry(t, url, 'SANDBAY', 'GigaStor ATX', '1.1')
    require_data(t, url, 200 * 10 ** 9 // MIB * MIB)
    report = daemon.load('--queue-depth', '4', '--connections', '2', '--block-size', '64KiB',
                         '--duration', '1s', '--write', '--read-percent', '50', url)
    t.check(report['errors'] == 0, f'{report["first_error"]}')
    t.check(daemon.terminate() == 0, 'it did not end well')


def test_gigastor_takes_four_or_eight_connections_where_asked(t):
    for most in (4, 8):
        daemon = start(t, 'istor-gigastor', lambda text, most=most: text.replace(
            'MaxConnections = 2', f'MaxConnections = {most}'))
        peer = wire.Peer(daemon.address())
        offers = {**OFFERS, 'MaxConnections': '32'}
        t.check(peer.login(f'{GIGASTOR}volume1', **offers) == 0, 'no login')
        t.check(peer.answers['MaxConnections'] == str(most), f'{peer.answers}')
        peer.close()
        t.check(daemon.terminate() == 0, 'it did not end well')


def label(data):
    return data.decode('utf-16-be').rstrip('\0')


def rdac_facts(t, initiator, lun):
    """What hosts make of the vendor's pages (Linux scsi_dh_rdac.c, multipath-tools)."""
    pages = {code: initiator.good(host.inquiry(255, code), 255, lun=lun)
             for code in (0x00, 0xc2, 0xc4, 0xc8, 0xc9)}
    t.check({0xc2, 0xc4, 0xc8, 0xc9} <= set(pages[0x00][4:]), 'the pages are not listed')
    standard = initiator.good(host.inquiry(96), 96, lun=lun)
    t.check(standard[5] & 0x30 == 0, 'with TPGS Linux takes its handler "alua"')
    for code, length, name in ((0xc2, 255, b'swr4'), (0xc4, 32, b'subs'), (0xc8, 175, b'edid'),
                               (0xc9, 48, b'vac1')):
        page = pages[code]
        t.check(len(page) == length and page[:4] == bytes((0, code, 0, length - 4)) and
                page[4:8] == name, f'page {code:#x}: {page.hex()}')
    device, access = pages[0xc8], pages[0xc9]
    t.check(device[11] == device[89] == 16, f'{device.hex()}')
    return {'luns': pages[0xc2][15], 'slot': pages[0xc4][29], 'volume id': device[12:28].hex(),
            'volume': label(device[29:89]), 'array id': device[90:106].hex(),
            'array': label(device[107:167]), 'lun': device[174],
            'up': bool(access[8] & 0x21), 'avt': bool(access[8] & 0x80),
            'priority': 2 * (access[8] & 1) | 4 * (access[9] & 15 == 1)}


def transfer_list(lun):
    """The expanded page 2Ch by which Linux has a LUN transferred."""
    page = bytearray(8 + 300)
    page[8:12] = 0x6c, 0x01, 0x01, 0x28
    page[12 + 33], page[12 + 36], page[12 + 37], page[12 + 38 + lun] = 2, 20, 2, 0x81
    return bytes(page)


def test_ds3500_is_one_to_rdac_hosts(t):
    t.need('iscsi-ls', 'iscsi-inq', 'qemu-io')
    daemon = start(t, 'ibm-ds3500')
    t.check(set(discovered(t, daemon.portal)) == {DS3500}, 'other targets are discovered')
    require_hardware(t, daemon, 8, raid10=[(4, 22, 11)])
    initiator = host.Host(t, daemon, target=DS3500)
    t.check(host.luns_of(initiator.good(host.report_luns(), 4096)) == [0, 1, 2, 3], 'LUNs')
    for lun in range(4):
        initiator.attentions(lun)
        serial, naa = identity_of(initiator, lun)
        t.check(naa.startswith('60080e500017a8d00000') and serial == naa, f'{serial} {naa}')
        facts = rdac_facts(t, initiator, lun)
        t.check(facts == {'luns': 255, 'slot': 0x31, 'volume id': naa, 'volume': f'volume{lun + 1}',
                          'array id': '60080e500017a8d0000000004d2f8b11', 'array': 'ds3500',
                          'lun': lun, 'up': True, 'avt': False, 'priority': 6}, f'{facts}')
        # MODE SELECT(10) with PF 0, as the handler sends it.
        done = initiator.command(bytes((0x55, 0, 0, 0, 0, 0, 0, 1, 52, 0)), data=transfer_list(lun))
        t.check(done.good, f'transfer of LUN {lun}: {done!r}')
    require_inquiry(t, f'iscsi://{daemon.portal}/{DS3500}/3', 'IBM', '1746      FAStT', '1070')
    require_data(t, f'iscsi://{daemon.portal}/{DS3500}/3', 500 << 30)
    t.check(daemon.terminate() == 0, 'it did not end well')


def test_the_array_to_change_starts_as_it_is(t):
    t.need('iscsi-ls', 'qemu-io')
    daemon = start(t, 'custom')
    require_hardware(t, daemon, 0, raid5=[(2, 4, 1)])
    daemon.sandbay('volume', 'create', 'v1', '--size', '100GiB', '--thin', '--initiator', '*')
    name = 'iqn.2026-11.org.sandbay:v1'
    t.check(set(discovered(t, daemon.portal)) == {name}, 'other targets are discovered')
    require_data(t, f'iscsi://{daemon.portal}/{name}/0', 100 << 30)
    drive = daemon.sandbay_json('drive', 'show', 'd0')
    t.check(drive['profile'].startswith('seagate-savvio-10k4-600'), f'{drive}')
    t.check(daemon.terminate() == 0, 'it did not end well')


def test_a_local_disk_is_the_rest_of_its_drive(t):
    t.need('iscsi-ls', 'qemu-io')
    daemon = start(t, 'local-disk')
    name = 'iqn.2026-11.org.sandbay:d-drive'
    t.check(set(discovered(t, daemon.portal)) == {name}, 'other targets are discovered')
    require_data(t, f'iscsi://{daemon.portal}/{name}/0', 20 * 10 ** 9 // MIB * MIB)
    require_hardware(t, daemon, 0, jbod=[(1, 1, 1)])
    t.check(daemon.terminate() == 0, 'it did not end well')


def test_usp_v_has_thirty_two_luns_behind_each_head(t):
    t.need('iscsi-ls', 'iscsi-inq', 'qemu-io')
    daemon = start(t, 'hds-usp-v')
    require_hardware(t, daemon, 0, raid10=[(64, 4, 2)])
    portals = [f'127.0.0.1:{daemon.ports[port]}' for port in (3260, 3261)]
    for number, (name, portal) in enumerate(zip(HEADS, portals)):
        seen = discovered(t, portal)
        t.check(seen.get(name) == portal, f'head {number + 1}: {seen}')
        initiator = host.Host(t, daemon, target=name,
                              portal=('127.0.0.1', int(portal.rpartition(':')[2])))
        luns = host.luns_of(initiator.good(host.report_luns(), 4096))
        t.check(luns == list(range(32)), f'LUNs {luns}')
        for lun in (0, 31):
            initiator.attentions(lun)
            device = 32 * number + lun
            wanted = (f'5071c90000{device:04x}', f'60060e800571c900000071c90000{device:04x}')
            t.check(identity_of(initiator, lun) == wanted, f'{identity_of(initiator, lun)}')
        require_inquiry(t, f'iscsi://{portal}/{name}/31', 'HITACHI', 'OPEN-V', '6003')
        require_data(t, f'iscsi://{portal}/{name}/31', 268 * 10 ** 9 // MIB * MIB)
        # The other head's LUNs are not behind this one.
        status = wire.Peer(('127.0.0.1', int(portal.rpartition(':')[2]))).login(HEADS[1 - number])
        t.check(status != 0, f'head {number + 1} has the other\'s LUNs')
    t.check(daemon.terminate() == 0, 'it did not end well')
