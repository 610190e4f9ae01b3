{# What dbt-duckdb needs for a lake that is attached with the Airport extension. Copy this file into your project. #}

{% macro in_dollars(sql) %}$skiway${{ sql }}$skiway${% endmacro %}

{% macro name_in_lake(relation) %}{{ in_dollars(relation.include(database=false).render()) }}{% endmacro %}

{% macro drop_view_in_lake(view) %}
  {# The second statement makes the client forget the view, which it lists as a table. #}
  call {{ view.database }}.skiway.drop_view({{ name_in_lake(view) }}, if_exists => true);
  drop table if exists {{ view }};
{% endmacro %}


{# -- schemas and relations ------------------------------------------------------------------------------------------ #}

{% macro duckdb__list_schemas(database) %}
  {# dbt-duckdb looks for the name with its quotes, finds nothing, and creates the schema IF NOT EXISTS, which the client does not send. #}
  {{ return(dbt.duckdb__list_schemas(database | replace('"', ''))) }}
{% endmacro %}

{% macro duckdb__list_relations_without_caching(schema_relation) %}
  {# DuckDB would list views as tables. #}
  {% call statement('list_relations_without_caching', fetch_result=True) %}
    select '{{ schema_relation.database }}' as database, name, schema_name as schema, type from (
      select schema_name, table_name as name, 'table' as type from {{ schema_relation.database }}.skiway.tables
      union all
      select schema_name, view_name, 'view' from {{ schema_relation.database }}.skiway.views
    ) where lower(schema_name) = lower({{ in_dollars(schema_relation.schema) }})
  {% endcall %}
  {{ return(load_result('list_relations_without_caching').table) }}
{% endmacro %}

{% macro duckdb__drop_relation(relation) %}
  {% call statement('drop_relation', auto_begin=False) %}
    {% if relation.is_view %}
      {{ drop_view_in_lake(relation) }}
    {% else %}
      drop table if exists {{ relation }};
    {% endif %}
  {% endcall %}
{% endmacro %}


{# -- views: the client has no CREATE VIEW --------------------------------------------------------------------------- #}

{% materialization view, adapter='duckdb' %}
  {% set existing, view = load_cached_relation(this), this.incorporate(type='view') %}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% if existing is not none and not existing.is_view %}
    {% do adapter.drop_relation(existing) %}
  {% endif %}
  {% call statement('main') %}{{ get_create_view_as_sql(view, sql) }}{% endcall %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [view]}) }}
{% endmaterialization %}

{% macro duckdb__create_view_as(relation, sql) %}
  {% if config.get('contract').enforced %}{{ get_assert_columns_equivalent(sql) }}{% endif %}
  call {{ relation.database }}.skiway.create_view({{ name_in_lake(relation) }}, {{ in_dollars(sql) }}, replace => true,
    comment => {{ in_dollars(model.description) }});
  {# DuckDB has listed the lake when it attached it. The first statement shows it a new view, the second one new columns. #}
  create table if not exists {{ relation }} (shown boolean);
  alter table {{ relation }} rename to {{ adapter.quote(relation.identifier) }};
{% endmacro %}


{# -- tables --------------------------------------------------------------------------------------------------------- #}

{% macro duckdb__create_table_as(temporary, relation, compiled_code, language='sql', partitioned_by=none, sorted_by=none) %}
  {% if temporary or language != 'sql' %}
    {{- dbt.duckdb__create_table_as(temporary, relation, compiled_code, language) }}
  {% else %}
    {# A new table gets its name once it has all rows. Otherwise the next run would take a part of them for the whole table. #}
    {% set made = make_intermediate_relation(relation) if relation.identifier == this.identifier else relation %}
    {{ config.get('sql_header') or '' }}
    drop table if exists {{ made }};
    {% if config.get('contract').enforced %}
      {{ get_assert_columns_equivalent(compiled_code) }}
      create table {{ made }} {{ get_table_columns_and_constraints() }};
      insert into {{ made }} {{ get_column_names() }} ({{ get_select_subquery(compiled_code) }});
    {% else %}
      create table {{ made }} as ({{ compiled_code }});
    {% endif %}
    {% if made.identifier != relation.identifier %}
      alter table {{ made }} rename to {{ adapter.quote(relation.identifier) }};
    {% endif %}
  {% endif %}
{% endmacro %}

{% macro duckdb__rename_relation(from_relation, to_relation) %}
  {# dbt replaces a table by renaming the old and the new one. That would be another table, without the history, the grants and
     the policies of the old one. If the columns are the same, the table stays, and one commit replaces its rows. #}
  {% set is_backup = to_relation.identifier.endswith('__dbt_backup') %}
  {% set found = run_query('select 1 from ' ~ to_relation.database ~ '.skiway.tables where schema_name = '
      ~ in_dollars(to_relation.schema) ~ ' and table_name = ' ~ in_dollars(to_relation.identifier)) %}
  {% set new_columns = adapter.get_columns_in_relation(from_relation) if found %}
  {% set old_columns = adapter.get_columns_in_relation(to_relation) if found %}
  {% call statement('rename_relation') %}
    {% if is_backup and from_relation.is_view %}
      {{ drop_view_in_lake(from_relation) }}
    {% elif is_backup %}
      select 'the next renaming replaces its rows';
    {% elif found and new_columns | map('string') | list == old_columns | map('string') | list %}
      call {{ to_relation.database }}.skiway.merge({{ name_in_lake(to_relation) }}, {{ in_dollars('from ' ~ from_relation) }}, 'false',
        clauses => 'when not matched then insert by name when not matched by source then delete');
      drop table {{ from_relation }};
    {% else %}
      {% if found %}drop table {{ to_relation }};{% endif %}
      alter table {{ from_relation }} rename to {{ adapter.quote(to_relation.identifier) }};
    {% endif %}
  {% endcall %}
{% endmacro %}


{# -- MERGE: the server runs it, as one commit ----------------------------------------------------------------------- #}

{% macro merge_in_lake(target, source, condition, clauses) %}
  {# `source` is a temporary table of the client, and the server needs its rows. #}
  {% set rows = make_intermediate_relation(target, '__dbt_rows') %}
  drop table if exists {{ rows }};
  create table {{ rows }} as from {{ source }};
  call {{ target.database }}.skiway.merge({{ name_in_lake(target) }}, {{ in_dollars('from ' ~ rows) }},
    {{ in_dollars(condition) }}, clauses => {{ in_dollars(clauses) }});
  drop table {{ rows }};
{% endmacro %}

{% macro duckdb__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates=none) %}
  {% set merge = dbt.duckdb__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates)
      | replace('DBT_INTERNAL_DEST', 'target') | replace('DBT_INTERNAL_SOURCE', 'source') %}
  {% set parts = modules.re.match('(?s).*? AS source\\s+ON (.*?)\\s(WHEN .*)', merge) %}
  {% if not parts %}{% do exceptions.raise_compiler_error('a lake has no MERGE … USING (columns): set unique_key') %}{% endif %}
  {{ merge_in_lake(target, source, parts[1], parts[2]) }}
{% endmacro %}

{% macro duckdb__snapshot_merge_sql(target, source, insert_cols) %}
  {% set columns = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() %}
  {% set valid_to, current = columns.dbt_valid_to, config.get('dbt_valid_to_current') %}
  {% set clauses %}
    when matched and source.dbt_change_type in ('update', 'delete')
      and (target.{{ valid_to }} is null {{- ' or target.' ~ valid_to ~ ' = ' ~ current if current }})
    then update set {{ valid_to }} = source.{{ valid_to }}
    when not matched and source.dbt_change_type = 'insert'
    then insert ({{ insert_cols | join(', ') }}) values (source.{{ insert_cols | join(', source.') }})
  {% endset %}
  {{ merge_in_lake(target, source, 'target.' ~ columns.dbt_scd_id ~ ' = source.' ~ columns.dbt_scd_id, clauses) }}
{% endmacro %}
